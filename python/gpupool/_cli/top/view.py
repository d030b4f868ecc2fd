"""What a person has chosen to see, and what is seen of that: lines and rows of texts, whatever shows them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from gpupool._cli.top.columns import Column, ordered, shown
from gpupool._cli.top.snapshot import Device, Holder, Snapshot
from gpupool._report.printable import printable
from gpupool._report.units import size

# The least and the most seconds from one look to the next.
LEAST, MOST = 0.1, 3600.0
# The most columns of a terminal that names take where its width is not known.
MOST_NAME = 40
# How long a bar is, and from which part of its memory on a device is nearly full.
_BAR = 20
_NEARLY_FULL = 0.9
NOBODY = (
    "No process tells of itself: gpupool.set_neighbour(), or GPUPOOL_NEIGHBOURS=1 in its environment, has it do so."
)


@dataclass(frozen=True)
class View:
    """What is shown, and how."""

    sort: str = "reserved"
    is_reversed: bool = False
    # The only device that is shown; None for all.
    device: int | None = None
    # The seconds from one look to the next.
    interval: float = 1.0
    has_pools: bool = False


def title(snapshot: Snapshot, view: View) -> str:
    """Return the line above the table."""
    runtime = "host (simulated)" if snapshot.runtime == "host" else snapshot.runtime
    moment = time.strftime("%H:%M:%S", time.localtime(snapshot.time))
    order = f"by {view.sort}{', reversed' if view.is_reversed else ''}"
    return f"gpupool {snapshot.version}, {runtime}, {moment}, {order}"


def device_line(device: Device) -> tuple[str, str]:
    """Return the kind of a device's line, device, full or error, and the line: its memory first, its name last."""
    if device.error is not None:
        return "error", f"{device.device}: {printable(device.error)}"
    name = printable(device.name or "unknown")
    if device.total_bytes is None or device.used_bytes is None:
        total = "" if device.total_bytes is None else f"{size(device.total_bytes)}, "
        return "device", f"{device.device}: {total}the driver does not count what is used, {name}"
    part = device.used_bytes / device.total_bytes if device.total_bytes else 0.0
    full = round(_BAR * min(1.0, part))
    bar = f"[{'#' * full}{'.' * (_BAR - full)}]"
    claimed = f", {size(device.claimed_bytes)} claimed" if device.claimed_bytes else ""
    used = f"{size(device.used_bytes)} of {size(device.total_bytes)} used"
    line = f"{device.device}: {used} {bar} {size(device.free_bytes or 0)} free{claimed}, {name}"
    return "full" if part >= _NEARLY_FULL else "device", line


def rows(device: Device, view: View) -> Iterator[tuple[str, Holder]]:
    """Yield who holds a device's memory, each with its kind: processes, below each its parts if asked, and others."""
    for process in ordered(device.processes, view.sort, view.is_reversed):
        yield ("over" if process.is_over else "process"), process
        if view.has_pools:
            for part in (*(process.pools or ()), *(process.libraries or ())):
                yield "pool", part
    if device.others_bytes is not None:
        yield "others", Holder(name="others (driver's count)", reserved_bytes=device.others_bytes)


def plain(snapshot: Snapshot, view: View) -> str:
    """Return the table as plain lines, with all columns and as wide as it gets."""
    columns = shown(None)
    lines = [title(snapshot, view), _plain([column.heading for column in columns], columns)]
    for device in snapshot.devices:
        lines.append(device_line(device)[1])
        lines += [_plain([column.cell(holder) for column in columns], columns) for _, holder in rows(device, view)]
    return "\n".join([*lines, NOBODY] if snapshot.is_empty else lines)


def _plain(cells: list[str], columns: list[Column]) -> str:
    filled = (
        cell.ljust(MOST_NAME) if column.is_name else cell.rjust(column.width)
        for cell, column in zip(cells, columns, strict=True)
    )
    return " ".join(filled).rstrip()
