"""The live table: Textual has the terminal, its keys, its sizes and what scrolls."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from rich.table import Table
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from gpupool._cli.top.columns import KEYS
from gpupool._cli.top.snapshot import Snapshot
from gpupool._cli.top.table import body, heading, line
from gpupool._cli.top.view import LEAST, MOST, View, title

# The seconds between two looks that the keys choose from.
_INTERVALS = (LEAST, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, MOST)


def watch(look: Callable[..., Snapshot], view: View) -> int:
    """Show the table, look anew as often as the view says, and return the exit code after the key that quits.

    Raises:
        Exception: What a look raised.
    """
    table = LiveTable(look, view)
    error = table.run()
    if error is not None:
        raise error
    return table.return_code or 0


class LiveTable(App[Exception]):
    """The table on the whole terminal; it returns what went wrong."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title { text-style: bold; height: 1; }
    #heading { text-style: reverse; height: 1; }
    Help { background: ansi_default; }
    VerticalScroll { scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave(0)", "quit", tooltip="quit, as does Ctrl-C"),
        Binding("ctrl+c", f"leave({128 + signal.SIGINT})", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False),
        Binding("h,question_mark", "help", "help", key_display="h", tooltip="show this help; any key leaves it"),
        Binding("s", "sort(1)", "sort", tooltip="sort by the next column"),
        Binding("S", "sort(-1)", show=False, tooltip="sort by the previous column"),
        Binding("r", "reverse", "reverse", tooltip="reverse the order"),
        Binding("d", "device", "device", tooltip="show the next device alone, and after the last one all"),
        Binding("plus,equals_sign", "pace(1)", "slower", key_display="+", tooltip="look less often"),
        Binding("minus", "pace(-1)", "faster", key_display="-", tooltip="look more often"),
        Binding("p", "pools", "pools", tooltip="ask the processes for their pools and show them, or hide them"),
        Binding("space", "look", show=False, tooltip="look now"),
        Binding("j", "scroll(1)", show=False, tooltip="scroll by a line, as arrows do; pages, home and end by more"),
        Binding("k", "scroll(-1)", show=False, tooltip="scroll back by a line"),
    ]

    def __init__(self, look: Callable[..., Snapshot], view: View) -> None:
        super().__init__(ansi_color=True)
        self._look, self._view, self._room = look, view, 80
        self._snapshot = look(pools=view.has_pools)

    def compose(self) -> ComposeResult:
        """Yield what stands on the terminal, from the top."""
        yield Static(id="title")
        yield Static(id="heading")
        with VerticalScroll():
            yield Static(id="body")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.action_leave, 128 + signal.SIGTERM)
        # Textual takes up the terminal's size in the signal's handler. If the next signal interrupts that, the size
        # before is the last that it takes up; nothing interrupts the loop.
        if callable(take_up := signal.getsignal(signal.SIGWINCH)):
            loop.add_signal_handler(signal.SIGWINCH, take_up, signal.SIGWINCH, None)
        # Also of a shell that has its commands outlive their terminal: without one there is no table.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self._timer = self.set_timer(self._view.interval, self.action_look)
        self.query_one(VerticalScroll).focus()

    def on_resize(self, event: events.Resize) -> None:
        """Draw what fits the new size."""
        # The last column is the scroll bar's.
        self._room = max(1, event.size.width - 1)
        self._draw()

    def action_leave(self, code: int) -> None:
        """End with an exit code."""
        self.exit(return_code=code)

    def action_help(self) -> None:
        """Show what the keys do."""
        self.push_screen(Help())

    def action_sort(self, step: int) -> None:
        """Sort by another column, in its own order."""
        self._show(sort=KEYS[(KEYS.index(self._view.sort) + step) % len(KEYS)], is_reversed=False)

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._show(is_reversed=not self._view.is_reversed)

    def action_device(self) -> None:
        """Show the next device alone, and after the last one all."""
        every = [None, *(each.device for each in self._snapshot.devices)]
        self._show(device=every[(every.index(self._view.device) + 1) % len(every)])
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def action_pace(self, step: int) -> None:
        """Look less often or more often."""
        others = [
            each for each in _INTERVALS if (each > self._view.interval if step > 0 else each < self._view.interval)
        ]
        self._show(interval=min(others, default=MOST) if step > 0 else max(others, default=LEAST))
        self._wait()

    def action_pools(self) -> None:
        """Show pools, which were not asked for before, or hide them."""
        self._show(has_pools=not self._view.has_pools)
        if self._view.has_pools:
            self.action_look()

    def action_scroll(self, lines: int) -> None:
        """Scroll by some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False, immediate=True)

    def action_look(self) -> None:
        """Look anew."""
        self._snapshot = self._look(pools=self._view.has_pools)
        self._wait()
        self._draw()

    def _handle_exception(self, error: Exception) -> None:
        # In place of Textual's, which prints tracebacks.
        self.exit(error)

    def _wait(self) -> None:
        self._timer.stop()
        self._timer = self.set_timer(self._view.interval, self.action_look)

    def _show(self, **changes: Any) -> None:
        self._view = replace(self._view, **changes)
        self._draw()

    def _draw(self) -> None:
        seen = self._snapshot.only(self._view.device)
        self.query_one("#title", Static).update(line(f"{title(seen, self._view)}, every {self._view.interval:g} s"))
        self.query_one("#heading", Static).update(heading(self._room))
        self.query_one("#body", Static).update(body(seen, self._view, self._room))


class Help(ModalScreen[None]):
    """What the keys do, until one is pressed."""

    def compose(self) -> ComposeResult:
        """Yield a line for each key."""
        keys = Table.grid(padding=(0, 2, 0, 0))
        for each in LiveTable.BINDINGS:
            if isinstance(each, Binding) and each.tooltip:
                keys.add_row(each.key_display or each.key, each.tooltip)
        yield Static(keys)

    def on_key(self, event: events.Key) -> None:
        """Leave it."""
        event.stop()
        self.dismiss()
