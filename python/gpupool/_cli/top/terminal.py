"""The terminal as the live table has it, by curses: taken over and left as it was, its keys and its sizes."""

import contextlib
import curses
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import gpupool

# What `Terminal.key` returns when the table must be drawn anew, as curses calls it after a new size.
REDRAW = "KEY_RESIZE"
# The exit code that shells have for a program that SIGTERM ended.
_TERMINATED = 128 + signal.SIGTERM
# A new size, and going on after Ctrl-Z, meanwhile of which the size may have changed.
_SIZED = (signal.SIGWINCH, signal.SIGCONT)


def can_place_lines() -> bool:
    """Whether standard output is a terminal of a known kind that places lines where they belong."""
    try:
        curses.setupterm(fd=sys.stdout.fileno())
    except curses.error:
        return False
    return bool(curses.tigetstr("cup"))


class Terminal:
    """The terminal while the table has it: the window that is drawn in, and the keys."""

    def __init__(self, window: Any, woken: int) -> None:
        self.window = window
        self._woken = woken

    def key(self, deadline: float) -> str | None:
        """Wait for a key and return its name, or `REDRAW`; None if nothing comes until then.

        Raises:
            Unavailable: The terminal is gone.
        """
        while True:
            with contextlib.suppress(curses.error):
                return str(self.window.getkey())
            asked = select.poll()
            for descriptor in (sys.stdin.fileno(), self._woken):
                asked.register(descriptor, select.POLLIN)
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            # Rounded up, or the last part of a millisecond is waited for in many turns.
            events = dict(asked.poll(int(left * 1000) + 1))
            if self._woken in events:
                os.read(self._woken, 1 << 10)
                self._fit()
                return REDRAW
            if events.get(sys.stdin.fileno(), 0) & (select.POLLHUP | select.POLLERR):
                raise gpupool.Unavailable("the terminal is gone")

    def _fit(self) -> None:
        """Tell curses which size the terminal has now."""
        with contextlib.suppress(OSError):
            columns, lines = os.get_terminal_size(sys.stdout.fileno())
            if lines and columns and curses.is_term_resized(lines, columns):
                curses.resizeterm(lines, columns)


@contextlib.contextmanager
def taken_over() -> Iterator[Terminal]:
    """Take the terminal over, and leave it as it was, also at an error, Ctrl-C, or SIGTERM."""
    sys.stdout.flush()
    with contextlib.ExitStack() as undone:
        woken = undone.enter_context(_signals())
        window = curses.initscr()
        undone.callback(_leave, window)
        curses.noecho()
        # Unlike raw mode it leaves Ctrl-C and Ctrl-Z what they are.
        curses.cbreak()
        window.keypad(True)
        window.nodelay(True)
        # A terminal may be unable to hide its cursor.
        with contextlib.suppress(curses.error):
            curses.curs_set(0)
        yield Terminal(window, woken)


def _leave(window: Any) -> None:
    # Both fail where the terminal is gone.
    with contextlib.suppress(curses.error):
        # The line that the shell goes on with, where the table stays on the screen.
        window.move(window.getmaxyx()[0] - 1, 0)
        window.clrtoeol()
        window.refresh()
    with contextlib.suppress(curses.error):
        curses.endwin()


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """Yield a descriptor that can be read after a new size, so that none is missed between a look and a wait.

    SIGTERM is an exception meanwhile. Curses leaves the signals alone that have a handler here.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    former = {each: signal.getsignal(each) for each in (*_SIZED, signal.SIGTERM)}
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        for each in _SIZED:
            signal.signal(each, _pass)
        signal.signal(signal.SIGTERM, _end)
        yield reading
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(woken)
        os.close(reading)
        os.close(writing)


def _pass(*_: object) -> None:
    """Do nothing more than to have a handler."""


def _end(*_: object) -> NoReturn:
    raise SystemExit(_TERMINATED)
