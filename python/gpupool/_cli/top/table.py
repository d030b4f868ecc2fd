"""The table as lines of text, each with what kind of line it is; nothing here knows of a terminal."""

import time
from collections.abc import Iterator
from typing import NamedTuple

from gpupool._cli.top.cells import cut, pad, width
from gpupool._cli.top.columns import Column, ordered, shown
from gpupool._cli.top.snapshot import Device, Holder, Snapshot
from gpupool._cli.top.view import EVERY, FOOT, View
from gpupool._report.printable import printable
from gpupool._report.units import size

# The most columns that names take, where there is room.
_MOST_NAME = 40
_OTHERS = "others (driver's count)"
_OTHERS_SHORT = "others"
_POOL_MARGIN = "  "
# How long a bar is, and from which part of its memory on a device is nearly full.
_BAR = 20
_NEARLY_FULL = 0.9
_NOBODY = (
    "No process tells of itself: gpupool.set_neighbour(), or GPUPOOL_NEIGHBOURS=1 in its environment, has it do so."
)


class Line(NamedTuple):
    """A line of the table; `kind` is title, heading, device, full, process, over, pool, others, note, error or foot."""

    kind: str
    text: str


class Table(NamedTuple):
    """The whole table: the lines that stay where they are, and the body between them, which scrolls."""

    title: Line
    heading: Line
    body: list[Line]
    foot: Line


def table(snapshot: Snapshot, view: View, room: int | None) -> Table:
    """Return the table of a snapshot for a terminal of so many columns; for None with all that there is."""
    seen = snapshot.only(view.device)
    columns = shown(room)
    widths = [column.width for column in columns]
    taken = sum(each + 1 for each in widths) - 1
    for at, column in enumerate(columns):
        if column.is_name:
            wanted = max([column.width, *(width(name) for name in _names(seen, view))])
            widths[at] = min(wanted, _MOST_NAME, wanted if room is None else max(0, column.width + room - taken))
    heads = _row([column.heading for column in columns], columns, widths)
    body: list[Line] = []
    for device in seen.devices:
        body.append(_device(device, room))
        for kind, holder in _holders(device, view):
            body.append(Line(kind, _row([column.cell(holder) for column in columns], columns, widths)))
    if not any(device.processes for device in seen.devices):
        body.append(Line("note", _NOBODY))
    made = Table(_title(seen, view), Line("heading", heads), body, _foot(view))
    if room is None:
        return made
    title, heading, foot = _fit(made.title, made.heading, made.foot, room=room)
    return Table(title, heading, _fit(*body, room=room), foot)


def as_text(snapshot: Snapshot, view: View, room: int | None) -> str:
    """Return the table as text, without the keys."""
    made = table(snapshot, view, room)
    return "\n".join(line.text for line in (made.title, made.heading, *made.body))


def help_lines(room: int) -> list[Line]:
    """Return what the keys do, and what the table does not say."""
    lines = [Line("title", "Keys"), *(Line("note", f"{keys:<14}{meaning}") for keys, meaning in EVERY)]
    return _fit(*lines, room=room)


def _fit(*lines: Line, room: int) -> list[Line]:
    return [Line(line.kind, cut(line.text, room)) for line in lines]


def _row(cells: list[str], columns: list[Column], widths: list[int]) -> str:
    row = []
    for cell, column, room in zip(cells, columns, widths, strict=True):
        if column.is_name:
            fitting = _OTHERS_SHORT if cell == _OTHERS and width(cell) > room else cell
            row.append(pad(cut(fitting, room), room, to_right=False))
        else:
            row.append(pad(cell, room, to_right=True))
    return " ".join(row).rstrip()


def _holders(device: Device, view: View) -> Iterator[tuple[str, Holder]]:
    """Yield the rows of a device, each with its kind: processes, below each its pools if asked for, and all others."""
    for process in ordered(device.processes, view.sort, view.is_reversed):
        yield ("over" if process.is_over else "process"), process
        if view.has_pools:
            for pool in process.pools or ():
                yield "pool", pool
    if device.others_bytes is not None:
        yield "others", Holder(name=_OTHERS, reserved_bytes=device.others_bytes)


def _names(snapshot: Snapshot, view: View) -> Iterator[str]:
    for device in snapshot.devices:
        for _, holder in _holders(device, view):
            yield printable(holder.name)


def _title(snapshot: Snapshot, view: View) -> Line:
    runtime = "host (simulated)" if snapshot.runtime == "host" else snapshot.runtime
    moment = time.strftime("%H:%M:%S", time.localtime(snapshot.time))
    order = f"by {view.sort}{', reversed' if view.is_reversed else ''}"
    return Line("title", f"gpupool {snapshot.version}, {runtime}, {moment}, {order}")


def _foot(view: View) -> Line:
    return Line("foot", "  ".join([f"every {view.interval:g} s", *(f"{key} {meaning}" for key, meaning in FOOT)]))


def _device(device: Device, room: int | None) -> Line:
    """Return the line of a device: its memory first, then its name and more as far as there is room."""
    if device.error is not None:
        return Line("error", f"{device.device} {printable(device.error)}")
    number, name = str(device.device), f" {printable(device.name or 'unknown')}"
    if device.total_bytes is None or device.used_bytes is None:
        total = "" if device.total_bytes is None else f"{size(device.total_bytes)}, "
        return Line("device", f"{number}{name}: {total}the driver does not count what is used")
    memory = f": {size(device.used_bytes)} of {size(device.total_bytes)} used"
    part = device.used_bytes / device.total_bytes if device.total_bytes else 0.0
    full = round(_BAR * min(1.0, part))
    more = [f" [{'#' * full}{'.' * (_BAR - full)}]", f" {size(device.free_bytes or 0)} free"]
    if device.claimed_bytes:
        more.append(f", {size(device.claimed_bytes)} claimed")
    text = f"{number}{name}{memory}"
    if room is not None and width(text) > room:
        text = f"{number}{memory}"
    for piece in more:
        if room is not None and width(text) + width(piece) > room:
            break
        text += piece
    return Line("full" if part >= _NEARLY_FULL else "device", text)
