"""Allocation traces: RMM's CSV logs and PyTorch's memory snapshots, packed for the replay."""

import csv
import functools
import gzip
import io
import os
import pickle
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import gpupool

# Set in an event's slot number if the event is a free.
FREE = 1 << 31
MAX_SIZE = (1 << 64) - 1

# Whether it is an allocation, what tells its block from other live ones, size and stream.
_Event: TypeAlias = tuple[bool, str | int, int, int]
_Reader: TypeAlias = "io.BufferedReader[Any]"


class TraceError(gpupool.Error):
    """A file that cannot be read as a trace."""


@dataclass(frozen=True)
class Trace:
    """The allocations and frees of one program, in order, with an element of each array for each event.

    An allocation has a slot number of its own, counted from 0 and not used again, and its free names that number.
    Integers are in the machine's byte order, which is little endian wherever CUDA runs.
    """

    name: str
    """The file's name without its folder."""
    events: int
    peak_live: int
    """The most bytes that were live at a time, as the program asked for them: nothing is rounded up."""
    slot_count: int
    slots: bytes = field(repr=False)
    """u32: the slot number, with FREE set for a free."""
    sizes: bytes = field(repr=False)
    """u64: the bytes asked for; 0 for a free."""
    streams: bytes = field(repr=False)
    """u32: streams are numbered as they appear, but the default stream is 0 if the trace uses it."""
    device: int | None = None
    """The device whose events these are: that with most of them. None for a log, which does not name devices."""
    device_count: int = 1
    """How many devices the file has events of."""


def read(path: str) -> Trace:
    """Read a CSV log or a snapshot, compressed with gzip or not; its content says which, not its name.

    Raises TraceError, which says what is wrong, in which file and where.
    """
    try:
        with open(path, "rb") as file:
            if file.peek(2)[:2] != b"\x1f\x8b":
                return _read(path, file)
            with gzip.GzipFile(fileobj=file) as unpacked, io.BufferedReader(unpacked, 1 << 18) as buffered:
                return _read(path, buffered)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise TraceError(f"{path}: damaged or cut off, copy it again: {error}") from error


def _read(path: str, file: _Reader) -> Trace:
    # Every pickle of protocol 2 or later starts with the opcode PROTO.
    if file.peek(1)[:1] == b"\x80":
        device_traces = _snapshot_traces(path, file)
        device = max(range(len(device_traces)), key=lambda number: len(device_traces[number]))
        events = _snapshot_events(path, device, device_traces[device])
        return _pack(path, events, device, sum(map(bool, device_traces)))
    with io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="") as text:
        return _pack(path, _log_events(path, text))


def _pack(path: str, events: Iterator[_Event], device: int | None = None, device_count: int = 1) -> Trace:
    slots = array("I")
    sizes = array("Q")
    streams: list[int] = []
    live: dict[str | int, tuple[int, int, int]] = {}
    count = now = peak = 0
    for allocates, block, size, stream in events:
        # An allocation of a live block also ends the former one: its free is not in the trace.
        former = live.pop(block, None)
        if former is not None:
            slots.append(former[0] | FREE)
            sizes.append(0)
            streams.append(former[2] if allocates else stream)
            now -= former[1]
        if allocates:
            live[block] = count, size, stream
            slots.append(count)
            sizes.append(size)
            streams.append(stream)
            count += 1
            now += size
            if now > peak:
                peak = now
    if not peak:
        raise TraceError(f"{path}: nothing to replay: no allocation of at least one byte in it")
    order = dict.fromkeys(streams)
    if 0 in order:
        order = {0: None, **order}
    numbers = {stream: number for number, stream in enumerate(order)}
    return Trace(
        name=os.path.basename(path),
        events=len(slots),
        peak_live=peak,
        slot_count=count,
        slots=slots.tobytes(),
        sizes=sizes.tobytes(),
        streams=array("I", [numbers[stream] for stream in streams]).tobytes(),
        device=device,
        device_count=device_count,
    )


def _log_events(path: str, lines: io.TextIOWrapper) -> Iterator[_Event]:
    reader = csv.reader(lines, skipinitialspace=True)
    row: list[str] = []
    try:
        row = next(reader, [])
        names = [name.strip().lower() for name in row]
        missing = [name for name in ("Action", "Pointer", "Size", "Stream") if name.lower() not in names]
        if missing:
            raise TraceError(
                f"{path}: line 1: no column {missing[0]}: neither an RMM log, whose first line is "
                "Thread,Time,Action,Pointer,Size,Stream, nor a PyTorch memory snapshot"
            )
        action_column, pointer_column, size_column, stream_column = map(
            names.index, ("action", "pointer", "size", "stream")
        )
        stream_of = functools.cache(_stream_of)
        for row in reader:
            if not row:
                continue
            action = row[action_column]
            # The pointer's text is enough to tell blocks apart.
            if action == "allocate":
                size = int(row[size_column])
                if not 0 <= size <= MAX_SIZE:
                    raise ValueError(size)
                yield True, row[pointer_column], size, stream_of(row[stream_column])
            elif action in ("free", "deallocate"):
                yield False, row[pointer_column], 0, stream_of(row[stream_column])
            elif action != "allocate failure":
                raise ValueError(action)
    except (ValueError, IndexError, csv.Error) as error:
        line = ",".join(row)
        line = line if len(line) <= 80 else f"{line[:77]}..."
        raise TraceError(
            f"{path}: line {reader.line_num}: neither an allocation nor a free: {line!r}; correct or remove the line"
        ) from error


def _stream_of(text: str) -> int:
    return int(text, 16 if text[:2].lower() == "0x" else 10)


class _Unpickler(pickle.Unpickler):
    """Reads containers, numbers and strings; a file that names anything else could run code through it."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which could run code")


def _snapshot_traces(path: str, file: _Reader) -> list[list[Any]]:
    try:
        snapshot = _Unpickler(file).load()
    except Exception as error:
        # The bytes of a file can make the unpickler raise nearly anything.
        raise _not_a_snapshot(path, str(error) or type(error).__name__) from error
    device_traces = snapshot.get("device_traces") if isinstance(snapshot, dict) else None
    if not isinstance(device_traces, list) or not all(isinstance(trace, list) for trace in device_traces):
        raise _not_a_snapshot(path, "it has no lists device_traces")
    if not any(device_traces):
        raise TraceError(
            f"{path}: a snapshot without history: call gpupool.record_memory_history(), or in PyTorch "
            "torch.cuda.memory._record_memory_history(), before the program's allocations, then dump it again"
        )
    return device_traces


def _not_a_snapshot(path: str, reason: str) -> TraceError:
    return TraceError(
        f"{path}: not a PyTorch memory snapshot, or a damaged one: {reason}; "
        "write one with torch.cuda.memory._dump_snapshot()"
    )


def _snapshot_events(path: str, device: int, entries: list[Any]) -> Iterator[_Event]:
    # A block is free when the other streams that used it are done. If no entry says when that was, the program's own
    # free has to do.
    completed = any(isinstance(entry, dict) and entry.get("action") == "free_completed" for entry in entries)
    free = "free_completed" if completed else "free_requested"
    for number, entry in enumerate(entries):
        try:
            action = entry["action"]
            if action not in ("alloc", free):
                continue
            address, size, stream = entry["addr"], entry["size"], entry["stream"]
            if not (type(address) is type(size) is type(stream) is int and 0 <= size <= MAX_SIZE):
                raise ValueError(f"addr {address!r}, size {size!r}, stream {stream!r}")
        except (LookupError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise _not_a_snapshot(path, f"device_traces[{device}][{number}]: {reason}") from error
        yield action == "alloc", address, size, stream
