"""The table by Rich, which knows how wide a text is and cuts what does not fit."""

from collections.abc import Iterable, Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from gpupool._cli.top.columns import COLUMNS, shown
from gpupool._cli.top.snapshot import Holder, Snapshot
from gpupool._cli.top.view import MOST_NAME, NOBODY, View, device_line, rows, title

_STYLES = {
    "device": "cyan",
    "full": "bold yellow",
    "over": "bold red",
    "error": "bold red",
    "pool": "dim",
    "others": "dim",
}
# What the table takes where nothing of it is to be left out.
_WIDEST = sum((MOST_NAME if column.is_name else column.width) + 1 for column in COLUMNS) - 1


def heading(room: int) -> Table:
    """Return the headings of the columns that fit."""
    return _grid(room, [("", [column.heading for column in shown(room)])])


def body(snapshot: Snapshot, view: View, room: int) -> Group:
    """Return each device, and below it a row for each who holds its memory."""
    parts: list[Text | Table] = []
    for device in snapshot.devices:
        kind, told = device_line(device)
        parts.append(line(told, _STYLES[kind]))
        parts.append(
            _grid(room, ((_STYLES.get(kind, ""), _cells(holder, room)) for kind, holder in rows(device, view)))
        )
    return Group(*parts, *([Text(NOBODY)] if snapshot.is_empty else []))


def as_text(snapshot: Snapshot, view: View, room: int | None) -> str:
    """Return the table as text for a terminal of so many columns; for None with all that there is."""
    width = _WIDEST if room is None else room
    # With a height too, or of a dumb terminal it takes the width that it thinks of.
    console = Console(width=width, height=1, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(Group(line(title(snapshot, view)), heading(width), body(snapshot, view, width)))
    return "\n".join(each.rstrip() for each in capture.get().splitlines())


def line(text: str, style: str = "") -> Text:
    """Return a line that is cut where it does not fit."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _cells(holder: Holder, room: int) -> list[str]:
    return [column.cell(holder) for column in shown(room)]


def _grid(room: int, lines: Iterable[tuple[str, Sequence[str]]]) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
    for column in shown(room):
        if column.is_name:
            grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        else:
            grid.add_column(width=column.width, no_wrap=True, justify="right")
    for style, cells in lines:
        # Texts, for a name may look like Rich's own marks.
        grid.add_row(*map(Text, cells), style=style)
    return grid
