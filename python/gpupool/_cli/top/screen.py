"""The live table: it draws what the table says, and turns keys into views."""

import contextlib
import curses
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpupool._cli.top.snapshot import Snapshot
from gpupool._cli.top.table import Line, help_lines, table
from gpupool._cli.top.terminal import REDRAW, taken_over
from gpupool._cli.top.view import View, press

# Title, heading and foot.
_FIXED = 3


def watch(look: Callable[..., Snapshot], view: View) -> None:
    """Show the table, look anew as often as the view says, and return after the key that quits."""
    with taken_over() as terminal:
        window, styles = terminal.window, _styles()
        snapshot, looked = look(pools=view.has_pools), time.monotonic()
        while True:
            view = _draw(window, styles, snapshot, view)
            key = terminal.key(looked + view.interval)
            if key == "q":
                return
            had_pools = view.has_pools
            if key not in (None, " ", REDRAW):
                view = press(view, key, snapshot, _page(window))
            # Pools that are to be shown were not asked for before.
            if key in (None, " ") or view.has_pools > had_pools:
                snapshot, looked = look(pools=view.has_pools), time.monotonic()


def _styles() -> dict[str, int]:
    """Return how each kind of line looks: in colours, unless NO_COLOR is set or the terminal has none."""
    styles = {
        "title": curses.A_BOLD,
        "heading": curses.A_REVERSE,
        "full": curses.A_BOLD,
        "over": curses.A_BOLD,
        "error": curses.A_BOLD,
        "pool": curses.A_DIM,
        "others": curses.A_DIM,
        "foot": curses.A_DIM,
    }
    if os.environ.get("NO_COLOR") or not curses.has_colors():
        return styles
    curses.start_color()
    background = curses.COLOR_BLACK
    with contextlib.suppress(curses.error):
        curses.use_default_colors()
        background = -1
    colours = {
        "device": curses.COLOR_CYAN,
        "full": curses.COLOR_YELLOW,
        "over": curses.COLOR_RED,
        "error": curses.COLOR_RED,
    }
    for pair, (kind, colour) in enumerate(colours.items(), 1):
        curses.init_pair(pair, colour, background)
        styles[kind] = styles.get(kind, curses.A_NORMAL) | curses.color_pair(pair)
    return styles


def _page(window: Any) -> int:
    """Return how many lines of the body there is room for."""
    height: int = window.getmaxyx()[0]
    return max(1, height - _FIXED)


def _draw(window: Any, styles: dict[str, int], snapshot: Snapshot, view: View) -> View:
    """Draw everything, and return the view with a first line that there is."""
    height, room = window.getmaxyx()
    made, page = table(snapshot, view, room), _page(window)
    view = replace(view, first=max(0, min(view.first, len(made.body) - page)))
    body = made.body[view.first : view.first + page]
    window.erase()
    lines = help_lines(room) if view.is_help else [made.title, made.heading, *body]
    for row, line in enumerate(lines[: height - 1 or 1]):
        _put(window, row, room, line, styles)
    if height > 1:
        _put(window, height - 1, room, made.foot, styles)
    window.refresh()
    return view


def _put(window: Any, row: int, room: int, line: Line, styles: dict[str, int]) -> None:
    # What the terminal cannot show is shown as escapes.
    text = line.text.encode(window.encoding, "backslashreplace").decode(window.encoding)
    # A heading is a bar from side to side.
    text = text.ljust(room) if line.kind == "heading" else text
    # Behind the last column of the last line the cursor has no place.
    with contextlib.suppress(curses.error):
        window.addnstr(row, 0, text, room, styles.get(line.kind, curses.A_NORMAL))
