"""Summaries of memory: a bar of what holds each device, and the tables that their text has."""

from typing import TYPE_CHECKING

from gpupool._notebook.markup import bar, box, table, title
from gpupool._plot.picture import PALETTE
from gpupool._report import tables as _tables
from gpupool._report.units import size

if TYPE_CHECKING:
    from gpupool._report.summary import DeviceSummary, MemorySummary


def html(summary: "MemorySummary") -> str:
    """Return a summary as HTML."""
    parts = [title(summary._title), *(part for device in summary.devices for part in _device(device))]
    if summary.devices and summary.pinned:
        parts.append(table(_tables.of_pinned(summary.pinned, summary.pinned_limit)))
    return box(*parts)


def of_device(device: "DeviceSummary") -> str:
    """Return the summary of one device as HTML."""
    return box(*_device(device))


def _device(device: "DeviceSummary") -> list[str]:
    # What the driver does not tell is in the table, with the reason.
    held = [
        ("live", device.live_bytes - device.asleep_bytes, "sky"),
        ("cached", device.cached_bytes, "green"),
        ("releasing", device.releasing_bytes, "purple"),
        ("library handles", device.handle_bytes, "orange"),
        ("workspaces", device.workspace_bytes, "yellow"),
        ("other libraries", sum(holder.nbytes for holder in device.holders), "vermillion"),
        ("contexts, code", device.context_bytes or 0, "blue"),
        ("other", device.other_bytes or 0, "grey"),
    ]
    parts = [(name, nbytes, size(nbytes), PALETTE[colour]) for name, nbytes, colour in held]
    parts.append(("free", device.free_bytes or 0, size(device.free_bytes or 0), "transparent"))
    whole = max(device.total_bytes or 0, sum(nbytes for _, nbytes, _, _ in parts))
    return [bar(parts, whole), *map(table, _tables.of_device(device))]
