"""The summary of the GPUs' memory: memory pools, library handles and the rest, device by device.

The counts come from gpupool's own books and one call of the driver for each device. The package imports this module
when it is first used, since dataclasses take longer to import than all of gpupool.
"""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

from gpupool import _native
from gpupool._report import tables as _tables

__all__ = [
    "DeviceSummary",
    "FrameworkSummary",
    "HolderSummary",
    "LibrarySummary",
    "MemorySummary",
    "PinnedSummary",
    "PoolSummary",
    "StreamSummary",
    "gather",
    "memory_summary",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamSummary:
    """The memory that a pool holds for the requests of one stream, from all threads.

    ``stream`` is the stream's address; 0 is the legacy default stream, and what is free in pages that streams share; 2
    stands for all per-thread default streams. With ``is_feed`` it is a stream of gpupool's, and its live memory belongs
    to another allocator that takes its memory from the pool, as PyTorch's in :func:`gpupool.torch.mem_pool`. With
    ``is_ranges`` it is the pages of memory ranges, which many streams may use.
    """

    stream: int
    is_feed: bool
    is_ranges: bool
    live_bytes: int
    requested_bytes: int
    cached_bytes: int
    live_blocks: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Counts:
    """The counters of a pool, of a device or of a NUMA node, as in :class:`gpupool.typing.PoolStats`."""

    live_bytes: int
    peak_live_bytes: int
    requested_bytes: int
    cached_bytes: int
    releasing_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    live_blocks: int
    waiting_blocks: int
    allocations: int
    frees: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolSummary(_Counts):
    """The counts of one pool of a device's memory.

    ``reserved_bytes`` is the sum of live, cached and releasing bytes, less those asleep. ``id`` is ``(0, 0)`` for the
    device's default pool. ``given_name`` is what a framework that made the pool calls it, if any. A pool with
    ``is_closed`` was closed or dropped, and waits for its live blocks to be freed. ``streams`` has the largest first;
    their live and cached bytes add up to the pool's. ``sleeps`` is how often the pool was put to sleep,
    ``sleep_seconds`` and ``wake_seconds`` what that and waking took the last time. The rest is as in
    :class:`gpupool.typing.PoolStats`.
    """

    id: tuple[int, int]
    given_name: str | None
    is_closed: bool
    is_asleep: bool
    sleeps: int
    sleep_seconds: float
    wake_seconds: float
    limit: int | None
    asleep_bytes: int
    backup_bytes: int
    streams: tuple[StreamSummary, ...]

    @property
    def name(self) -> str:
        """The pool's name: ``default``, or its id."""
        return "default" if self.id == (0, 0) else str(self.id)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibrarySummary:
    """The counts of one library's handles on a device, as in :class:`gpupool.typing.HandleStats`."""

    library: str
    created: int
    destroyed: int
    discarded: int
    idle: int
    held: int
    leased: int
    peak_in_use: int
    hits: int
    misses: int
    hand_overs: int
    waits: int
    failures: int
    create_seconds: float
    device_bytes: int
    peak_device_bytes: int
    workspace_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameworkSummary:
    """The bytes that a framework's own allocator says it has reserved on a device.

    They are a part of the other bytes, or, in a process that is watched, of what a holder has.
    """

    framework: str
    reserved_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class HolderSummary:
    """The device memory that other code than gpupool got from the driver, as a process that is watched counts it.

    ``name`` is the library's, such as NCCL, or that of its file, ``path``. ``nbytes`` is what it holds now in so many
    ``allocations``, without what gpupool's handles of that library are known to have; ``peak_bytes`` is with it.
    """

    name: str
    path: str
    nbytes: int
    peak_bytes: int
    allocations: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedSummary:
    """A block that other processes use, which this one has shared.

    ``is_freed`` is True if only they keep it. ``processes`` has the ids of those that have attached it; without any,
    it was sent and has not been received.
    """

    ptr: int
    nbytes: int
    is_freed: bool
    processes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceSummary(_Counts):
    """The summary of one device's memory, in bytes.

    ``used_bytes``, which the driver says are not free, is the sum of ``reserved_bytes`` (all of gpupool's memory
    pools), ``handle_bytes`` (what library handles took when they were created), ``workspace_bytes`` (what gpupool gave
    them to compute with) and ``other_bytes``: other processes, CUDA contexts and kernels, and other allocators of this
    process, of which ``frameworks`` names those that can be asked. The bytes of handles are measured as well as it can
    be done; should they be too many, ``other_bytes`` is 0.

    If ``is_watched``, as in a program of ``gpupool run --watch``, ``holders`` has what other code of this process got
    from the driver, also the frameworks' allocators, the largest first, and ``context_bytes`` is what the process has
    besides: contexts, kernels, and what the driver needs for them. Both are then no part of ``other_bytes``.
    ``context_bytes`` is None where NVML does not count the process, as in some containers, and ``is_watched`` where
    nothing can be watched, since the driver is not CUDA's.

    ``reserved_bytes`` is the sum of ``live_bytes``, ``cached_bytes`` and ``releasing_bytes``, less ``asleep_bytes``;
    these, the peaks and the counters are as in :class:`gpupool.typing.MemoryStats`.

    ``shared`` has the blocks that other processes have attached, or were sent; ``attached_bytes`` are other processes'
    memory, which is none of this one's, and ``sent_bytes`` what was sent and not received, which is live.

    ``driver_error`` says why the driver could not be asked, as after an error of earlier work; then ``total_bytes``,
    ``free_bytes``, ``used_bytes`` and ``other_bytes`` are None.
    """

    device: int
    total_bytes: int | None
    free_bytes: int | None
    used_bytes: int | None
    driver_error: str | None
    asleep_bytes: int
    backup_bytes: int
    driver_calls: int
    moved_pages: int
    retries: int
    failures: int
    handle_bytes: int
    workspace_bytes: int
    context_bytes: int | None
    other_bytes: int | None
    is_watched: bool | None
    holders: tuple[HolderSummary, ...]
    frameworks: tuple[FrameworkSummary, ...]
    attached_bytes: int
    sent_bytes: int
    asked_neighbours: int
    received_bytes: int
    asking_seconds: float
    asked_by_neighbours: int
    given_bytes: int
    pools: tuple[PoolSummary, ...]
    shared: tuple[SharedSummary, ...]
    libraries: tuple[LibrarySummary, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain values, by the names of the fields."""
        plain: dict[str, Any] = _plain(self)
        return plain

    def __str__(self) -> str:
        """Return the tables of the device."""
        return "\n\n".join("\n".join(_tables.aligned(table)) for table in _tables.of_device(self))

    def _repr_html_(self) -> str:
        """Return the tables of the device as HTML, for a notebook."""
        from gpupool._notebook import summary

        return summary.of_device(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PinnedSummary(_Counts):
    """The counts of the pinned memory on one NUMA node of the host, as in :class:`gpupool.typing.MemoryStats`."""

    numa: int
    driver_calls: int
    moved_pages: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemorySummary:
    """The summary of the GPUs' memory, and of the host's pinned memory. ``print`` shows it as tables.

    ``process`` is the process's id, ``runtime`` the runtime in use, None if the summary is of no device. ``pinned`` has
    each NUMA node whose pinned memory the process has used, and ``pinned_limit`` the most bytes that all of them
    together may reserve, None for no limit.
    """

    process: int
    runtime: str | None
    devices: tuple[DeviceSummary, ...]
    pinned: tuple[PinnedSummary, ...] = ()
    pinned_limit: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain values, by the names of the fields."""
        plain: dict[str, Any] = _plain(self)
        return plain

    def to_json(self, indent: int | None = None) -> str:
        """Return the summary as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        """Return the tables of all devices."""
        if not self.devices:
            return self._title
        tables = [self._title, *map(str, self.devices)]
        if self.pinned:
            tables.append("\n".join(_tables.aligned(_tables.of_pinned(self.pinned, self.pinned_limit))))
        return "\n\n".join(tables)

    def _repr_html_(self) -> str:
        """Return the tables of all devices as HTML, for a notebook."""
        from gpupool._notebook import summary

        return summary.html(self)

    @property
    def _title(self) -> str:
        if not self.devices:
            return f"process {self.process} has used no device through gpupool"
        return f"process {self.process}, runtime {self.runtime}"


def memory_summary(device: SupportsIndex | None = None) -> MemorySummary:
    """Return what holds the memory of a device, or of every device that this process has used through gpupool.

    So it does for the host's pinned memory, in either case.

    If it has used none, the summary is of the current device. Each device is asked how much is free, which makes a
    context there if the process has none. No other thread is stopped. Counts are exact while no other thread allocates
    or frees.

    Raises:
        gpupool.InvalidValue: There is no such device.
        gpupool.RuntimeUnavailable: There is no device at all.
        gpupool.Forked: The process is a forked child.
    """
    if device is not None:
        return gather([device])
    return gather(_native.devices_in_use() or [_native.current_device()])


def gather(devices: Iterable[SupportsIndex]) -> MemorySummary:
    """Return the summary of these devices, and of pinned memory. Without a device, no driver is started."""
    summaries = tuple(_device(_native.summarize(device)) for device in devices)
    runtime = _native.runtime() if summaries else None
    nodes, limit = _native.summarize_pinned()
    # Pinned memory has no pools of users, and does not sleep.
    names = [field.name for field in dataclasses.fields(PinnedSummary)]
    pinned = tuple(PinnedSummary(**{name: node[name] for name in names}) for node in nodes)
    return MemorySummary(process=os.getpid(), runtime=runtime, devices=summaries, pinned=pinned, pinned_limit=limit)


def _device(counts: dict[str, Any]) -> DeviceSummary:
    pools = tuple(
        PoolSummary(**{**pool, "streams": tuple(StreamSummary(**stream) for stream in pool["streams"])})
        for pool in counts.pop("pools")
    )
    libraries = tuple(LibrarySummary(**library) for library in counts.pop("libraries"))
    shared = tuple(SharedSummary(**{**block, "processes": tuple(block["processes"])}) for block in counts.pop("shared"))
    holders = tuple(HolderSummary(**holder) for holder in counts.pop("holders"))
    fed = sum(stream.live_bytes for pool in pools for stream in pool.streams if stream.is_feed)
    return DeviceSummary(
        **counts,
        is_watched=_native.is_watched() if _native.runtime() == "cuda" else None,
        holders=holders,
        frameworks=tuple(_frameworks(counts["device"], fed)),
        pools=pools,
        shared=shared,
        libraries=libraries,
    )


def _torch(device: int, fed: int) -> int:
    """Return the bytes that PyTorch's allocator has reserved, without those that gpupool feeds it.

    https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_reserved.html
    """
    torch = sys.modules["torch"]
    if not torch.cuda.is_initialized():
        return 0
    place = sys.modules.get("gpupool._torch.place")
    if place is not None and place.is_taken():
        # What PyTorch then tells is gpupool's.
        return 0
    # The memory that gpupool's pools feed PyTorch's is counted as gpupool's.
    from_gpupool = fed if "gpupool.torch" in sys.modules else 0
    return max(0, int(torch.cuda.memory_reserved(device)) - from_gpupool)


def _cupy(device: int, _fed: int) -> int:
    """Return the bytes that CuPy's own pool has.

    https://docs.cupy.dev/en/stable/reference/generated/cupy.cuda.MemoryPool.html
    """
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(device):
        return int(cupy.get_default_memory_pool().total_bytes())


# The frameworks with a documented way to ask. JAX has one, but it would start JAX.
_ASK: dict[str, Callable[[int, int], int]] = {"torch": _torch, "cupy": _cupy}


def _frameworks(device: int, fed: int) -> Iterator[FrameworkSummary]:
    """Yield what the frameworks' own allocators hold.

    Only frameworks that are imported and can be asked have one. None of them is started.
    """
    if _native.runtime() == "host":
        return
    for name, ask in _ASK.items():
        nbytes = 0
        # PyTorch on gpupool's allocator has no numbers of its own; if anything fails, the rest is still worth telling.
        with contextlib.suppress(Exception):
            nbytes = ask(device, fed) if name in sys.modules else 0
        if nbytes:
            yield FrameworkSummary(framework=name, reserved_bytes=nbytes)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value
