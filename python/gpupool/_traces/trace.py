"""The trace of a program's allocations, read from RMM's CSV logs and from memory snapshots of PyTorch or gpupool."""

import functools
import gzip
import io
import os
import pickle
import zlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from gpupool._report.printable import printable
from gpupool._report.units import size as _size
from gpupool._traces import bounds as _bounds
from gpupool._traces import log as _trace_log
from gpupool._traces import snapshot as _trace_snapshot
from gpupool._traces import wrong_file as _wrong_file
from gpupool._traces.event import Event, PoolId, Reader, Stacks, TraceError, Watch, pointer
from gpupool._traces.snapshot import HandleEvent, OutOfMemory, Segment

__all__ = ["FREE", "Trace", "TraceError", "TraceFile", "of_snapshot", "read", "read_file"]

# The bit of an event's slot number that is set if the event is a free.
FREE = 1 << 31


@dataclass(frozen=True)
class Trace:
    """The allocations and frees of one program, in order, with an element of each array for each event.

    An allocation has a slot number of its own, counted from 0 and not used again, and its free names that number.
    Integers are in the machine's byte order, which is little endian wherever CUDA runs.
    """

    name: str
    """The file's name without its folder, as it can be printed."""
    events: int
    peak_live: int
    """The most bytes that were live at a time, as the program asked for them: nothing is rounded up."""
    slot_count: int
    slots: bytes = field(repr=False)
    """The slot numbers, as u32, with FREE set for a free."""
    sizes: bytes = field(repr=False)
    """The bytes asked for, as u64; 0 for a free."""
    streams: bytes = field(repr=False)
    """The streams, as u32, numbered as they appear, but the default stream is 0 if the trace uses it."""
    stream_names: tuple[int, ...] = field(repr=False)
    """The numbers that the file has for the streams."""
    start: int | None
    """The first event's time in microseconds, by the file's clock; None if the file has no times."""
    times: "array[int]" = field(repr=False)
    """The microseconds since the first event, as i64, never falling; empty if the file has no times."""
    reserved: "array[int]" = field(repr=False)
    """The bytes of the device that the program's allocator had after the event, as u64; empty if not known."""
    addresses: "array[int]" = field(repr=False)
    """The address of each slot's block, as u64; empty if the file's pointers are no numbers."""
    pools: "array[int]" = field(repr=False)
    """The place of each slot's pool among the pool ids, as u32."""
    pool_ids: tuple[PoolId | None, ...] = field(repr=False)
    """The ids of the pools, in the order of their first blocks; None stands for pools that the file does not tell."""
    stacks: "array[int]" = field(repr=False)
    """The place of each slot's call stack among the call stacks, as u32."""
    call_stacks: list[tuple[str, ...]] = field(repr=False)
    """The call stacks, each with the innermost frame first; number 0 is empty."""
    device: int | None = None
    """The device whose events these are. None for a log, which does not name devices."""
    device_count: int = 1
    """The number of devices that the file has events of."""
    cut: str | None = None
    """Where the file was cut off, as the end of a sentence; None if it is whole."""


@dataclass(frozen=True)
class TraceFile:
    """The content of a trace file, as far as it tells of one device."""

    name: str
    trace: Trace | None
    """The allocations and frees; None for a snapshot without a trace, or if no byte was allocated in it."""
    has_events: bool
    device: int | None
    devices: tuple[int, ...]
    """The devices that the file tells of."""
    segments: list[Segment] = field(repr=False)
    """The memory that the allocator had when the snapshot was written."""
    failures: list[OutOfMemory] = field(repr=False)
    handle_events: list[HandleEvent] = field(repr=False)
    call_stacks: list[tuple[str, ...]] = field(repr=False)


def read(path: str, watch: Watch | None = None) -> Trace:
    """Return the trace of a CSV log or a snapshot, compressed with gzip or not; its content says which, not its name.

    Of a snapshot's devices it is the one with most events.

    Raises:
        TraceError: The file cannot be read; the message says what is wrong, in which file and where.
    """
    found = read_file(path, None, watch)
    if found.trace is not None:
        return found.trace
    if not found.has_events:
        raise TraceError(
            f"{path}: a snapshot without a trace: call gpupool.record_memory_history(), or in PyTorch "
            "torch.cuda.memory._record_memory_history(), before the program's allocations, then dump it again"
        )
    raise _nothing(path)


def read_file(path: str, device: int | None = None, watch: Watch | None = None) -> TraceFile:
    """Return all that a trace file tells of a device, by default of the one with most events.

    Raises:
        TraceError: The file cannot be read, as for :func:`read`.
    """
    try:
        with open(path, "rb", buffering=0) as raw, io.BufferedReader(_Watched(raw, watch), 1 << 18) as file:
            limit = _bounds.memory_limit(raw.fileno())
            if file.peek(2)[:2] != b"\x1f\x8b":
                return _file_of(path, file, device, limit)
            unpacked = _Unpacked(file)
            with io.BufferedReader(unpacked, 1 << 18) as buffered:
                return _file_of(path, buffered, device, limit, lambda: unpacked.is_cut)
    except IsADirectoryError:
        raise _wrong_file.error(path, "a folder") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except zlib.error as error:
        raise TraceError(f"{path}: damaged, copy it again: {error}") from error


def of_snapshot(content: dict[str, Any], device: int, name: str) -> Trace | None:
    """Return a device's trace from a snapshot of this process; None if no byte was allocated in it.

    Raises:
        TraceError: The snapshot cannot be right.
    """
    snapshot = _trace_snapshot.Snapshot(name, content["device_traces"], content["segments"], [])
    return _pack(name, _bounds.MOST_MEMORY, snapshot.events(device), "{}", snapshot.stacks, device)


def of_process(content: dict[str, Any], device: int | None) -> TraceFile:
    """Return what a snapshot of this process tells of a device, as :func:`read_file` does of a file."""
    # In the form that a file has, so that it is read in no other way.
    with io.BufferedReader(io.BytesIO(pickle.dumps(content, protocol=4))) as file:
        return _file_of("this process", file, device, _bounds.MOST_MEMORY)


class _Watched(io.RawIOBase):
    """A file that tells how far it was read."""

    def __init__(self, file: io.FileIO, watch: Watch | None) -> None:
        self._file = file
        self._watch = watch
        self._size = os.fstat(file.fileno()).st_size
        self._done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        count = self._file.readinto(buffer) or 0
        self._done += count
        if self._watch is not None and self._size:
            self._watch(min(1.0, self._done / self._size))
        return count


class _Unpacked(io.RawIOBase):
    """What a file packed with gzip holds, up to where it was cut off."""

    def __init__(self, file: Reader) -> None:
        self._file = gzip.GzipFile(fileobj=file)
        self.is_cut = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        try:
            # The file's own readinto() would lose what it has when it finds no more.
            found = self._file.read1(len(buffer))
        except EOFError:
            found, self.is_cut = b"", True
        buffer[: len(found)] = found
        return len(found)


def _file_of(
    path: str, file: Reader, device: int | None, memory_limit: int, is_cut: Callable[[], bool] = lambda: False
) -> TraceFile:
    name = printable(os.path.basename(path))
    pack = functools.partial(_pack, path, memory_limit)
    start = file.peek(1)
    # Every pickle of protocol 2 or later starts with the opcode PROTO.
    if start[:1] != b"\x80":
        wrong = "packed with gzip, and cut off at its start" if is_cut() and not start else _wrong_file.kind_of(start)
        if wrong is not None:
            raise _wrong_file.error(path, wrong)
        if device is not None:
            raise TraceError(f"{path}: a log does not name devices; leave --device out")
        with io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="") as text:
            cuts: list[str] = []
            log = pack(_trace_log.events(path, text, is_cut, cuts.append), "line {}", Stacks())
        if log is None:
            raise _nothing(path, *cuts)
        if cuts:
            log = replace(log, cut=f"cut off {cuts[0]}, read up to there as if the program had ended")
        return TraceFile(name, log, True, None, (), [], [], [], log.call_stacks)
    snapshot = _trace_snapshot.load(path, file, memory_limit)
    devices = tuple(snapshot.devices())
    if device is None:
        device = snapshot.busiest()
    elif device not in devices:
        known = f"only of {_bounds.first_of(devices)}" if devices else "nor of any other"
        raise TraceError(f"{path}: nothing of device {device} in it, {known}")
    if device is None:
        return TraceFile(name, None, False, None, (), [], [], [], [()])
    trace = None
    has_events = device < len(snapshot.traces) and bool(snapshot.traces[device])
    if has_events:
        device_count = sum(map(bool, snapshot.traces))
        place = f"device_traces[{device}][{{}}]"
        trace = pack(snapshot.events(device), place, snapshot.stacks, device, device_count)
    segments, handle_events = snapshot.segments(device), snapshot.handle_events(device)
    failures, stacks = snapshot.failures(device), snapshot.stacks.table
    return TraceFile(name, trace, has_events, device, devices, segments, failures, handle_events, stacks)


class _Series:
    """Numbers that a file tells; one that it does not tell makes all of them unknown."""

    def __init__(self, code: str) -> None:
        self.numbers: array[int] = array(code)
        self._is_known = True

    def add(self, number: int | None) -> None:
        """Add the next number, None for one that is not told."""
        if number is None:
            self._is_known = False
            del self.numbers[:]
        elif self._is_known:
            self.numbers.append(number)


def _nothing(path: str, *cuts: str) -> TraceError:
    cut = "".join(f", which was cut off {cut}; copy it again" for cut in cuts)
    return TraceError(f"{path}: nothing to replay: no allocation of at least one byte in it{cut}")


def _pack(
    path: str,
    memory_limit: int,
    events: Iterable[Event],
    place: str,
    stacks: Stacks,
    device: int | None = None,
    device_count: int = 1,
) -> Trace | None:
    most = memory_limit // _bounds.EVENT_MEMORY
    slots, sizes, streams = array("I"), array("Q"), array("I")
    stream_numbers: dict[int, int] = {}
    times, reserved, addresses = _Series("q"), _Series("Q"), _Series("Q")
    pools, stack_numbers = array("I"), array("I")
    pool_numbers: dict[PoolId | None, int] = {}
    live: dict[str | int, tuple[int, int, int]] = {}
    count = now = peak = 0
    start: int | None = None
    latest = 0

    def add(slot: int, size: int, stream: int, event: Event) -> None:
        nonlocal start, latest
        slots.append(slot)
        sizes.append(size)
        streams.append(stream_numbers.setdefault(stream, len(stream_numbers)))
        if event.time is not None:
            start = event.time if start is None else start
            latest = max(latest, event.time - start)
        times.add(None if event.time is None else latest)
        reserved.add(event.reserved)

    for event in events:
        # An allocation of a live block also ends the former one: its free is not in the trace.
        former = live.pop(event.block, None)
        if former is not None:
            add(former[0] | FREE, 0, former[2] if event.allocates else event.stream, event)
            now -= former[1]
        # RMM logs requests for 0 bytes too, which get no memory.
        if event.allocates and event.size:
            live[event.block] = count, event.size, event.stream
            add(count, event.size, event.stream, event)
            pools.append(pool_numbers.setdefault(event.pool, len(pool_numbers)))
            stack_numbers.append(event.stack)
            addresses.add(_address_of(event.block))
            count += 1
            now += event.size
            if now > peak:
                peak = now
                if peak > _bounds.MAX_TOTAL:
                    raise TraceError(
                        f"{path}: {place.format(event.place)}: more than {_size(_bounds.MAX_TOTAL)} would be live, "
                        "which no device has; correct the sizes"
                    )
            if count > most:
                raise TraceError(f"{path}: {place.format(event.place)}: {_bounds.too_much(memory_limit)}")
        if len(stream_numbers) > _bounds.MAX_STREAMS:
            raise TraceError(
                f"{path}: {place.format(event.place)}: more than {_bounds.MAX_STREAMS} streams, too many to make; "
                "correct the streams, or cut the file"
            )
    if not peak:
        return None
    default = stream_numbers.get(0, 0)
    if default:
        # Those before the default stream make room for it.
        moved = [*range(1, default + 1), 0, *range(default + 1, len(stream_numbers))]
        streams = array("I", [moved[stream] for stream in streams])
        stream_numbers = {0: 0, **stream_numbers}
    return Trace(
        name=printable(os.path.basename(path)),
        events=len(slots),
        peak_live=peak,
        slot_count=count,
        slots=slots.tobytes(),
        sizes=sizes.tobytes(),
        streams=streams.tobytes(),
        stream_names=tuple(stream_numbers),
        start=start if times.numbers else None,
        times=times.numbers,
        reserved=reserved.numbers,
        addresses=addresses.numbers,
        pools=pools,
        pool_ids=tuple(pool_numbers),
        stacks=stack_numbers,
        call_stacks=stacks.table,
        device=device,
        device_count=device_count,
    )


def _address_of(block: str | int) -> int | None:
    try:
        address = block if isinstance(block, int) else pointer(block)
    except ValueError:
        return None
    return address if 0 <= address <= _bounds.MAX_SIZE else None
