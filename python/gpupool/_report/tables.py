"""The tables of a summary: rows of texts, which a terminal has in columns and a notebook as HTML.

In a table's first row are the headings. A row may go on beyond them, with remarks.
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpupool._report.printable import printable
from gpupool._report.units import duration, size

if TYPE_CHECKING:
    from gpupool._report.summary import (
        DeviceSummary,
        HolderSummary,
        LibrarySummary,
        PinnedSummary,
        PoolSummary,
        StreamSummary,
        _Counts,
    )

# The number of streams of a pool that the table shows.
_STREAMS = 8

# The columns of a pool's bytes, and those of them that show no zero.
_COLUMNS = ("live", "cached", "releasing", "asleep", "backup", "reserved", "peak live", "peak reserved")
_RARE = ("releasing", "asleep", "backup")


def aligned(rows: list[list[str]]) -> list[str]:
    """Return the lines of a table.

    The first column is at the left, the others are at the right, and columns without a heading come last.
    """
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]

    def line(row: list[str]) -> str:
        numbers = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=False)]
        return "  ".join([row[0].ljust(widths[0]), *numbers, *row[len(widths) :]]).rstrip()

    return [line(row) for row in rows]


def _parts(counts: "_Counts") -> str:
    parts = f"live {size(counts.live_bytes)}, cached {size(counts.cached_bytes)}"
    return f"{parts}, releasing {size(counts.releasing_bytes)}" if counts.releasing_bytes else parts


def of_device(device: "DeviceSummary") -> list[list[list[str]]]:
    """Return the tables of a device that have rows."""
    tables = [_device_table(device), _pool_table(device.pools), _library_table(device.libraries)]
    # Libraries, pools, frameworks and holders have the names that somebody gave them.
    return [[[printable(cell) for cell in row] for row in table] for table in tables if len(table) > 1]


def of_pinned(nodes: "tuple[PinnedSummary, ...]", limit: int | None) -> list[list[str]]:
    """Return the table of pinned memory."""
    rows = [["pinned memory", "now", "peak", ""]]
    for node in nodes:
        reserved = [size(node.reserved_bytes), size(node.peak_reserved_bytes)]
        rows.append([f"NUMA node {node.numa}", *reserved, _parts(node)])
    if limit is not None:
        rows.append(["limit of all", size(limit), "", ""])
    return rows


def _device_table(device: "DeviceSummary") -> list[list[str]]:
    parts = _parts(device)
    if device.asleep_bytes:
        asleep, backup = size(device.asleep_bytes), size(device.backup_bytes)
        parts += f"; of the live {asleep} asleep, {backup} of pinned memory back it up"
    if device.shared:
        blocks, processes = len(device.shared), {process for each in device.shared for process in each.processes}
        by = f" by processes {', '.join(map(str, sorted(processes)))}" if processes else ""
        parts += f"; shared {size(sum(each.nbytes for each in device.shared))} in {blocks} blocks{by}"
    if device.sent_bytes:
        parts += f"; sent and not received {size(device.sent_bytes)}"
    handles = [f"{each.library} {size(each.device_bytes)}" for each in device.libraries if each.device_bytes]
    rows = [
        [f"device {device.device}", "now", "peak"],
        ["memory pools", size(device.reserved_bytes), size(device.peak_reserved_bytes), parts],
        ["library handles", size(device.handle_bytes), "", ", ".join(handles)],
        ["workspaces", size(device.workspace_bytes), ""],
        *(_holder_row(each) for each in device.holders if each.nbytes),
    ]
    if device.context_bytes is not None:
        rows.append(["contexts, code", size(device.context_bytes), ""])
    if device.attached_bytes:
        rows.append(["attached", size(device.attached_bytes), "", "of other processes, not counted above"])
    if device.asked_neighbours:
        took = f"asked {device.asked_neighbours} times, in {duration(round(device.asking_seconds * 1e6))}"
        rows.append(["from neighbours", size(device.received_bytes), "", took])
    if device.given_bytes:
        rows.append(["to neighbours", size(device.given_bytes), "", "given back while they lacked memory"])
    if device.failures:
        rows.append(["failed requests", str(device.failures), "", "for lack of memory"])
    if device.driver_error is not None:
        return [*rows, ["other, free", "unknown", "", device.driver_error]]
    for name, nbytes, note in (
        ("other", device.other_bytes, _others(device)),
        ("free", device.free_bytes, ""),
        ("total", device.total_bytes, ""),
    ):
        rows.append([name, size(nbytes or 0), "", note])
    return rows


def _holder_row(holder: "HolderSummary") -> list[str]:
    blocks = f"{holder.allocations} allocation{'s' if holder.allocations != 1 else ''}"
    file = os.path.basename(holder.path)
    note = blocks if file == holder.name else f"{blocks}, {file}"
    return [holder.name, size(holder.nbytes), size(holder.peak_bytes), note]


def _others(device: "DeviceSummary") -> str:
    """Return what the other bytes are, or may be. Frameworks' memory is a holder's where these are known."""
    if device.is_watched:
        return "other processes" if device.context_bytes is not None else "other processes, CUDA contexts, code"
    named = [f"{each.framework} {size(each.reserved_bytes)}" for each in device.frameworks]
    note = f"of that {', '.join(named)}" if named else "other processes, CUDA contexts, other allocators"
    is_unknown = device.is_watched is not None and device.other_bytes
    return f"{note}; gpupool run --watch tells whose" if is_unknown else note


def _pool_table(pools: "tuple[PoolSummary, ...]") -> list[list[str]]:
    rows = [["pool", *_COLUMNS, "blocks", "limit"]]
    for pool in pools:
        name = pool.name if pool.given_name is None else f'{pool.name} "{pool.given_name}"'
        name = f"{name}, closed" if pool.is_closed else name
        name = f"{name}, asleep in {pool.sleep_seconds:.3f} s" if pool.is_asleep else name
        held = [(column, getattr(pool, f"{column.replace(' ', '_')}_bytes")) for column in _COLUMNS]
        sizes = [size(nbytes) if nbytes or column not in _RARE else "" for column, nbytes in held]
        limit = "" if pool.limit is None else size(pool.limit)
        rows.append([name, *sizes, str(pool.live_blocks), limit])
        rows += [_stream_row(_stream_name(stream), [stream]) for stream in pool.streams[:_STREAMS]]
        if rest := pool.streams[_STREAMS:]:
            rows.append(_stream_row(f"{len(rest)} more streams", rest))
    used = [place for place in range(len(rows[0])) if any(row[place] for row in rows[1:])]
    return [[row[place] for place in used] for row in rows]


def _stream_row(name: str, streams: "Iterable[StreamSummary]") -> list[str]:
    live, cached, blocks = 0, 0, 0
    for stream in streams:
        live, cached, blocks = live + stream.live_bytes, cached + stream.cached_bytes, blocks + stream.live_blocks
    return [f"  {name}", size(live), size(cached), "", "", "", size(live + cached), "", "", str(blocks), ""]


def _stream_name(stream: "StreamSummary") -> str:
    if stream.is_feed:
        return "feeds other allocators"
    if stream.is_ranges:
        return "memory ranges"
    names = {0: "0 (default)", 2: "2 (per thread)"}
    return f"stream {names.get(stream.stream, hex(stream.stream))}"


def _library_table(libraries: "tuple[LibrarySummary, ...]") -> list[list[str]]:
    rows = [["library", "handles", "in use", "idle", "discarded", "peak in use", "memory", "peak", "workspaces"]]
    for each in (library for library in libraries if library.created):
        in_use = each.held + each.leased
        counts = (in_use + each.idle + each.discarded, in_use, each.idle, each.discarded, each.peak_in_use)
        sizes = (each.device_bytes, each.peak_device_bytes, each.workspace_bytes)
        rows.append([each.library, *map(str, counts), *map(size, sizes)])
    return rows
