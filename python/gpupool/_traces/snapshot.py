"""The reader of PyTorch's memory snapshots, and of gpupool's, which have the same form.

They hold the segments of the moment when they were written and, if the program kept one, a trace of what led to it: for
each device the allocations, frees and segments in order, from gpupool also what became of library handles. The trace
begins with the oldest entry that its buffer still had, so what was there before is found from what follows.
"""

import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gpupool
from gpupool import _native
from gpupool._traces.bounds import EVENT_MEMORY, MAX_NAME, MAX_SIZE, MAX_TIME, MAX_TOTAL, told, too_much
from gpupool._traces.event import Event, PoolId, Reader, Stacks, TraceError

# The actions of a trace that change the bytes which the allocator has of the device, and their signs.
_RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class Block(NamedTuple):
    """A part of a segment."""

    address: int
    size: int
    requested: int
    state: str
    """The state: ``active_allocated``, ``active_pending_free`` or ``inactive``."""
    stack: int


class Segment(NamedTuple):
    """Device memory that the allocator has."""

    address: int
    size: int
    stream: int
    pool: PoolId | None
    kind: str
    blocks: list[Block]


class OutOfMemory(NamedTuple):
    """A request that failed."""

    time: int
    size: int
    free: int


class HandleEvent(NamedTuple):
    """An event of a library handle."""

    time: int
    library: str
    action: str
    """The kind of event: ``create``, ``destroy``, ``take``, ``give_back`` or ``discard``."""
    handle: int


@dataclass
class Snapshot:
    """A snapshot that is unpickled and not yet looked at in detail."""

    path: str
    traces: list[list[Any]]
    """The entries of each device's trace."""
    segment_entries: list[dict[str, Any]]
    handle_entries: list[Any]
    stacks: Stacks = field(default_factory=Stacks)

    def devices(self) -> list[int]:
        """Return the devices that the snapshot has something of."""
        found = {number for number, trace in enumerate(self.traces) if trace}
        found.update(_device_of(entry) for entry in self.segment_entries)
        found.update(_device_of(entry) for entry in self.handle_entries)
        return sorted(found)

    def busiest(self) -> int | None:
        """Return the device with the longest trace; without traces, that with most memory, or with most handles."""
        memory: Counter[int] = Counter()
        for entry in self.segment_entries:
            memory[_device_of(entry)] += _number(entry, "total_size")
        handles = Counter(map(_device_of, self.handle_entries))

        def weight(device: int) -> tuple[int, int, int]:
            entries = len(self.traces[device]) if device < len(self.traces) else 0
            return entries, memory[device], handles[device]

        return max(self.devices(), key=lambda device: (weight(device), -device), default=None)

    def segments(self, device: int) -> list[Segment]:
        """Return the device's segments, by address; those without a byte are left out."""
        segments = []
        total = 0
        for number, entry in enumerate(self.segment_entries):
            if _device_of(entry) != device:
                continue
            try:
                segment = self._segment(entry)
            except (LookupError, TypeError, ValueError) as error:
                raise self._damaged(f"segments[{number}]", error) from error
            total += segment.size
            if segment.size:
                segments.append(segment)
        if total > MAX_TOTAL:
            raise self._damaged("segments", ValueError(f"more than {MAX_TOTAL} bytes together, which no device has"))
        return sorted(segments, key=lambda segment: segment.address)

    def _segment(self, entry: dict[str, Any]) -> Segment:
        address, size = _whole(entry, "address"), _whole(entry, "total_size")
        at, blocks = address, []
        for block in _list(entry, "blocks"):
            if not isinstance(block, dict):
                raise ValueError(f"a block {told(block)}")
            # PyTorch before 2.1 does not say where blocks are; they follow each other.
            start = _whole(block, "address") if "address" in block else at
            nbytes = _whole(block, "size")
            if not at <= start < start + nbytes <= address + size:
                raise ValueError(
                    f"the block at {start} of {nbytes} bytes is not inside the segment at {address} of {size} bytes, "
                    "behind the block before"
                )
            requested = _whole(block, "requested_size") if "requested_size" in block else nbytes
            stack = self.stacks.number(block.get("frames"))
            blocks.append(Block(start, nbytes, requested, _text(block, "state"), stack))
            at = start + nbytes
        kind = "expandable" if entry.get("is_expandable") else _text(entry, "segment_type", "")
        return Segment(address, size, _number(entry, "stream"), _pool_of(entry.get("segment_pool_id")), kind, blocks)

    def events(self, device: int) -> Iterator[Event]:
        """Yield the device's allocations and frees; first, as allocations, what was live when the trace begins."""
        entries = self.traces[device] if device < len(self.traces) else []
        segments = self.segments(device)
        # A block is free when the other streams that used it are done. If no entry says when that was, the
        # program's own free stands for it.
        completed = any(_action(entry) == "free_completed" for entry in entries)
        free = "free_completed" if completed else "free_requested"
        pools = _Pools(segments)
        reserved = _reserved_before(segments, entries)
        if reserved is not None and reserved > MAX_TOTAL:
            raise self._damaged(
                f"device_traces[{device}]", ValueError(f"{reserved} bytes reserved before it, which no device has")
            )
        begin = next((_time_of(entry) for entry in entries), None)
        for address, size, stream, stack in _live_before(segments, entries, free):
            yield Event(True, address, size, stream, 0, begin, pools.of(None, address), stack, reserved)
        for number, entry in enumerate(entries):
            try:
                action = _text(entry, "action")
                if action in _RESERVES and reserved is not None:
                    reserved += _RESERVES[action] * _whole(entry, "size")
                    if not 0 <= reserved <= MAX_TOTAL:
                        raise ValueError(f"{reserved} bytes would be reserved after it, which no device has")
                if action not in ("alloc", free):
                    continue
                address, size, stream = entry["addr"], entry["size"], entry["stream"]
                if not (type(address) is type(size) is type(stream) is int and 0 <= size <= MAX_SIZE):
                    raise ValueError(f"addr {told(address)}, size {told(size)}, stream {told(stream)}")
            except (LookupError, TypeError, ValueError) as error:
                raise self._damaged(f"device_traces[{device}][{number}]", error) from error
            allocates = action == "alloc"
            pool = pools.of(entry.get("pool_id"), address) if allocates else None
            stack = self.stacks.number(entry.get("frames")) if allocates else 0
            yield Event(allocates, address, size, stream, number, _time_of(entry), pool, stack, reserved)

    def failures(self, device: int) -> list[OutOfMemory]:
        """Return the requests that failed for want of memory."""
        entries = self.traces[device] if device < len(self.traces) else []
        return [
            OutOfMemory(_time_of(entry) or 0, _number(entry, "size"), _number(entry, "device_free"))
            for entry in entries
            if _action(entry) == "oom"
        ]

    def handle_events(self, device: int) -> list[HandleEvent]:
        """Return the events of the device's library handles, in order; PyTorch's snapshots have none."""
        events = []
        for number, entry in enumerate(self.handle_entries):
            if _device_of(entry) != device:
                continue
            try:
                texts = _text(entry, "library"), _text(entry, "action")
                time = _time_of(entry)
                if time is None:
                    raise ValueError(f"time_us {told(entry['time_us'])}")
                events.append(HandleEvent(time, *texts, _whole(entry, "handle")))
            except (LookupError, TypeError, ValueError) as error:
                raise self._damaged(f"handle_events[{number}]", error) from error
        return events

    def _damaged(self, place: str, error: Exception) -> TraceError:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        return _not_a_snapshot(self.path, f"{place}: {reason}")


def load(path: str, file: Reader, memory_limit: int) -> Snapshot:
    """Unpickle a snapshot without ever running code that it names."""
    try:
        content = _native.unpickle(file, memory_limit)
    except gpupool.InvalidValue as error:
        raise _not_a_snapshot(path, str(error)) from error
    except OverflowError:
        raise TraceError(f"{path}: {too_much(memory_limit)}") from None
    if isinstance(content, list):
        # What torch.cuda.memory_snapshot() returns.
        content = {"segments": content, "device_traces": []}
    traces = content.get("device_traces") if isinstance(content, dict) else None
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise _not_a_snapshot(path, "it has no lists device_traces")
    segments, handle_events = _list_of(content, "segments"), _list_of(content, "handle_events")
    # A file that was made to take all memory could have one entry, or list of blocks, many times.
    blocks = (_list_of(segment, "blocks") for segment in segments if isinstance(segment, dict))
    if sum(map(len, (*traces, *blocks, handle_events))) > memory_limit // EVENT_MEMORY:
        raise TraceError(f"{path}: {too_much(memory_limit)}")
    return Snapshot(path, traces, segments, handle_events)


def _list_of(content: dict[str, Any], key: str) -> list[Any]:
    entries = content.get(key)
    return entries if isinstance(entries, list) else []


def _not_a_snapshot(path: str, reason: str) -> TraceError:
    return TraceError(
        f"{path}: not a PyTorch memory snapshot, or a damaged one: {reason}; "
        "copy it again, or write one with torch.cuda.memory._dump_snapshot()"
    )


def _action(entry: object) -> object:
    return entry.get("action") if isinstance(entry, dict) else None


def _device_of(entry: object) -> int:
    device = entry.get("device", 0) if isinstance(entry, dict) else 0
    return device if type(device) is int and device >= 0 else 0


def _list(entry: dict[str, Any], key: str) -> list[Any]:
    value = entry[key]
    if not isinstance(value, list):
        raise ValueError(f"{key} {told(value)}")
    return value


def _text(entry: dict[str, Any], key: str, default: str | None = None) -> str:
    value = entry[key] if default is None else entry.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"{key} {told(value)}")
    return value[:MAX_NAME]


def _number(entry: object, key: str) -> int:
    value = entry.get(key) if isinstance(entry, dict) else None
    return value if type(value) is int else 0


def _whole(entry: dict[str, Any], key: str) -> int:
    value = entry[key]
    if type(value) is not int or not 0 <= value <= MAX_SIZE:
        raise ValueError(f"{key} {told(value)}")
    return value


def _time_of(entry: object) -> int | None:
    time = entry.get("time_us") if isinstance(entry, dict) else None
    return time if type(time) is int and 0 <= time <= MAX_TIME else None


def _pool_of(value: object) -> PoolId | None:
    if isinstance(value, (tuple, list)) and len(value) == 2 and type(value[0]) is type(value[1]) is int:
        return value[0], value[1]
    return None


class _Pools:
    """The pools by address, for events that do not name theirs: PyTorch's did not before 2.10."""

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._starts = [segment.address for segment in segments]
        # Memory that was given back since is in no segment. If there is only one pool, it belonged to that one.
        pools = {segment.pool for segment in segments}
        self._only = next(iter(pools)) if len(pools) == 1 else None

    def of(self, told: object, address: int) -> PoolId | None:
        pool = _pool_of(told)
        if pool is not None:
            return pool
        place = bisect.bisect_right(self._starts, address) - 1
        if place >= 0 and address < self._starts[place] + self._segments[place].size:
            return self._segments[place].pool
        return self._only


def _live_before(segments: list[Segment], entries: list[Any], free: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield what was live when the trace begins: freed there without an allocation, or still live at the end."""
    known: set[int] = set()
    live: set[int] = set()
    for entry in entries:
        address, action = entry.get("addr") if isinstance(entry, dict) else None, _action(entry)
        if type(address) is not int:
            continue
        if action == "alloc":
            known.add(address)
            live.add(address)
        elif action == free:
            if address not in known and _number(entry, "size") > 0:
                yield address, _number(entry, "size"), _number(entry, "stream"), 0
            known.add(address)
            live.discard(address)
    for segment in segments:
        for block in segment.blocks:
            if block.state != "inactive" and block.address not in live and (block.requested or block.size):
                yield block.address, block.requested or block.size, segment.stream, block.stack


def _sign(entry: object) -> int:
    action = _action(entry)
    return _RESERVES.get(action, 0) if isinstance(action, str) else 0


def _reserved_before(segments: list[Segment], entries: list[Any]) -> int | None:
    """Return the bytes that the allocator had when the trace begins; None if the snapshot does not tell."""
    if not segments and not any(_sign(entry) for entry in entries):
        return None
    change = lowest = 0
    for entry in entries:
        change += _sign(entry) * _number(entry, "size")
        lowest = min(lowest, change)
    return max(sum(segment.size for segment in segments) - change, -lowest)
