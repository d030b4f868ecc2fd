"""gpupool's statistics for Prometheus.

>>> gpupool.prometheus.text()  # the text format, for any web server

>>> prometheus_client.REGISTRY.register(gpupool.prometheus.Collector())  # if prometheus_client serves the metrics

prometheus_client writes both. They report only devices that the process has used through gpupool, so that a scrape
never initialises a driver. A process that cannot report its statistics, such as a forked child, has ``gpupool_up 0``
and no other metric of gpupool, so that the program's own metrics are still served. The names are stable; ``METRICS``
lists them with their meanings.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gpupool
from gpupool import _native
from gpupool._frameworks.plug import count_of, require
from gpupool._report import summary as _summary
from gpupool._report.printable import printable

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["CONTENT_TYPE", "METRICS", "Collector", "text"]

# The HTTP header ``Content-Type`` of what :func:`text` returns.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# The kinds of metrics whose names end so; all others are gauges.
_KINDS = {"_total": "counter", "_info": "info"}

# The meaning of every metric, by its name.
_MEANINGS = {
    "gpupool_up": "1 if gpupool can report its statistics, else 0.",
    "gpupool_info": "Version and runtime of gpupool.",
    "gpupool_device_memory_capacity_bytes": "Memory of the device.",
    "gpupool_device_memory_free_bytes": "Free memory of the device, as its driver reports.",
    "gpupool_device_memory_bytes": (
        "Used memory of the device by holder: live, cached and releasing memory of gpupool's pools, library handles, "
        "their workspaces, and other: other processes, CUDA contexts and other allocators. In a program that gpupool "
        "run --watch started, other libraries are holders by their names, and contexts is what the process has besides."
    ),
    "gpupool_device_memory_peak_reserved_bytes": "The peak of the memory reserved by gpupool's pools.",
    "gpupool_device_memory_attached_bytes": (
        "Buffers of other processes that are attached for the device and in use; not part of this process's memory."
    ),
    "gpupool_device_allocations_total": "Blocks of memory allocated.",
    "gpupool_device_frees_total": "Blocks of memory freed.",
    "gpupool_device_driver_calls_total": "Calls of the driver's memory functions.",
    "gpupool_device_moved_pages_total": "Pages of 2 MiB that were moved to where they were needed.",
    "gpupool_device_retries_total": "Requests that were tried again after memory was released to the driver.",
    "gpupool_device_failures_total": "Requests that failed for lack of memory.",
    "gpupool_device_asked_neighbours_total": "Times that this process asked its neighbours for memory.",
    "gpupool_device_received_bytes_total": "Bytes that neighbours gave back for this process.",
    "gpupool_device_asking_seconds_total": "Time that requests waited for neighbours.",
    "gpupool_device_asked_by_neighbours_total": "Questions of neighbours for memory, each for one kind of it.",
    "gpupool_device_given_bytes_total": "Bytes that this process gave back for neighbours.",
    "gpupool_framework_memory_reserved_bytes": (
        "What a framework's own allocator has reserved, a part of the device's other memory, or of a holder's."
    ),
    "gpupool_pool_memory_bytes": "Memory of a pool: live, cached, or releasing.",
    "gpupool_pool_memory_asleep_bytes": "Live memory of a pool that is asleep, without device memory.",
    "gpupool_pool_memory_backup_bytes": "Pinned host memory that backs up a sleeping pool.",
    "gpupool_pool_memory_ranges_bytes": "Committed pages of a pool's memory ranges, a part of its live memory.",
    "gpupool_pool_memory_requested_bytes": "Requested bytes of a pool's live memory.",
    "gpupool_pool_memory_peak_live_bytes": "The peak of a pool's live memory.",
    "gpupool_pool_memory_peak_reserved_bytes": "The peak of a pool's reserved memory.",
    "gpupool_pool_memory_limit_bytes": "The maximum memory that a pool may reserve, if there is a limit.",
    "gpupool_pool_live_blocks": "Live blocks of a pool.",
    "gpupool_pool_waiting_blocks": "Live blocks of a pool that were freed and wait for other streams.",
    "gpupool_stream_memory_bytes": "Memory of a pool for one stream: live or cached.",
    "gpupool_pinned_memory_bytes": "Pinned memory of a NUMA node of the host: live, cached, or releasing.",
    "gpupool_pinned_memory_requested_bytes": "Requested bytes of a NUMA node's live pinned memory.",
    "gpupool_pinned_memory_peak_live_bytes": "The peak of a NUMA node's live pinned memory.",
    "gpupool_pinned_memory_peak_reserved_bytes": "The peak of a NUMA node's reserved pinned memory.",
    "gpupool_pinned_memory_limit_bytes": (
        "The maximum pinned memory that the process may reserve on all NUMA nodes together, if there is a limit."
    ),
    "gpupool_pinned_live_blocks": "Live blocks of pinned memory.",
    "gpupool_pinned_waiting_blocks": "Live blocks of pinned memory that were freed and wait for streams.",
    "gpupool_pinned_allocations_total": "Blocks of pinned memory allocated.",
    "gpupool_pinned_frees_total": "Blocks of pinned memory freed.",
    "gpupool_pinned_driver_calls_total": "Calls of the driver's functions for pinned memory.",
    "gpupool_handles": "Library handles by state: idle, held by threads, leased, or discarded.",
    "gpupool_handles_peak_in_use": "The peak number of library handles in use.",
    "gpupool_handles_created_total": "Library handles created.",
    "gpupool_handles_destroyed_total": "Library handles destroyed.",
    "gpupool_handle_memory_bytes": "Device memory that library handles took when they were created.",
    "gpupool_handle_memory_peak_bytes": "The peak of the device memory of library handles.",
    "gpupool_handle_workspace_bytes": "Device memory that gpupool gave to library handles as workspaces.",
    "gpupool_handle_hits_total": "Requests for a handle that the thread's own served.",
    "gpupool_handle_misses_total": "Requests for a handle that went to the pool.",
    "gpupool_handle_hand_overs_total": "Misses served by an existing handle.",
    "gpupool_handle_waits_total": "Requests that waited for a handle because of a limit.",
    "gpupool_handle_failures_total": "Requests for and creations of handles that failed.",
    "gpupool_handle_create_seconds_total": "Time spent creating handles.",
}

# The type and meaning of every metric, by its name.
METRICS: dict[str, tuple[str, str]] = {
    name: (next((kind for end, kind in _KINDS.items() if name.endswith(end)), "gauge"), meaning)
    for name, meaning in _MEANINGS.items()
}

# The default number of pools with series of their own; pools may come and go by thousands.
_POOLS = 20

# What memory of gpupool's pools is.
_STATES = ("live", "cached", "releasing")

_Labels = dict[str, str]
_Sample = tuple[_Labels, float]


def text(*, pools: int = _POOLS, streams: int = 0) -> str:
    """Return the statistics in Prometheus' text format.

    Args:
        pools: How many pools of each device have their own series: the default one and those that hold most. The
            others are added up as the pool ``others``.
        streams: How many streams of each device have series, those that hold most. The default is 0, because there may
            be thousands of short-lived streams, and each would be a permanent series.

    Raises:
        gpupool.LibraryNotFound: prometheus_client is missing.
        gpupool.InvalidValue: A number is invalid.
    """
    collector = Collector(pools=pools, streams=streams)
    from prometheus_client import generate_latest

    written: bytes = generate_latest(collector)
    return written.decode()


class Collector:
    """A collector for ``prometheus_client.REGISTRY.register()`` or any other registry; see :func:`text`.

    Raises:
        gpupool.LibraryNotFound: prometheus_client is missing.
        gpupool.InvalidValue: A number is invalid.

    https://prometheus.github.io/client_python/collector/custom/
    """

    def __init__(self, *, pools: int = _POOLS, streams: int = 0) -> None:
        require("prometheus_client", (), "prometheus-client")
        self._pools, self._streams = count_of("pools", pools), count_of("streams", streams)

    def describe(self) -> "Iterable[Metric]":
        """Return every metric without its samples, for the registry to know the names."""
        return [_family(name, ()) for name in METRICS]

    def collect(self) -> "Iterable[Metric]":
        """Return the statistics of this moment."""
        found = _samples(self._pools, self._streams)
        return [_family(name, samples) for name, samples in found.items()]


def _family(name: str, samples: Sequence[_Sample]) -> "Metric":
    from prometheus_client import Metric

    kind, meaning = METRICS[name]
    # prometheus_client has counters and infos by their names without the suffixes.
    family = Metric(functools.reduce(str.removesuffix, _KINDS, name), meaning, kind)
    for labels, value in samples:
        family.add_sample(name, labels, value)
    return family


def _samples(pools: int, streams: int) -> dict[str, list[_Sample]]:
    """Return the samples of each metric that has any, in the order of ``METRICS``."""
    found: dict[str, list[_Sample]] = {name: [] for name in METRICS}
    try:
        summary = _summary.gather(_native.devices_in_use())
    except gpupool.Error:
        return {"gpupool_up": [({}, 0)]}
    found["gpupool_up"].append(({}, 1))
    found["gpupool_info"].append(({"version": gpupool.__version__, "runtime": summary.runtime or ""}, 1))
    for device in summary.devices:
        labels = {"device": str(device.device)}
        parts = (_of_device(device), _of_pools(device, pools), _of_streams(device, streams), _of_handles(device))
        for name, more, value in (sample for part in parts for sample in part):
            if value is not None:
                found[f"gpupool_{name}"].append(({**labels, **more}, value))
    for node in summary.pinned:
        for name, more, value in _of_node(node):
            if value is not None:
                found[f"gpupool_{name}"].append(({"numa": str(node.numa), **more}, value))
    if summary.pinned and summary.pinned_limit is not None:
        found["gpupool_pinned_memory_limit_bytes"].append(({}, summary.pinned_limit))
    return {name: samples for name, samples in found.items() if samples}


_Part = Iterator[tuple[str, _Labels, float | None]]


def _named(scope: str, summary: Any) -> Iterator[tuple[str, str]]:
    """Yield each metric that is named after a counter, and the counter.

    So ``pool_memory_peak_live_bytes`` is of ``peak_live_bytes``, and ``device_frees_total`` of ``frees``.
    """
    for field in dataclasses.fields(summary):
        for name in (f"{scope}_memory_{field.name}", f"{scope}_{field.name}", f"{scope}_{field.name}_total"):
            if f"gpupool_{name}" in METRICS:
                yield name, field.name


def _counters(scope: str, labels: _Labels, summary: Any) -> _Part:
    return ((name, labels, getattr(summary, counter)) for name, counter in _named(scope, summary))


def _states(name: str, labels: _Labels, summaries: Sequence[Any]) -> _Part:
    """Yield what is in device memory, or pinned: these states add up to what is reserved."""
    for state in _STATES:
        nbytes = sum(getattr(summary, f"{state}_bytes") for summary in summaries)
        asleep = sum(getattr(summary, "asleep_bytes", 0) for summary in summaries) if state == "live" else 0
        yield name, labels | {"state": state}, nbytes - asleep


def _of_device(device: _summary.DeviceSummary) -> _Part:
    yield "device_memory_capacity_bytes", {}, device.total_bytes
    for name, labels, nbytes in _states("device_memory_bytes", {}, [device]):
        yield name, {"holder": labels["state"]}, nbytes
    rest = ("handles", "workspaces", "contexts", "other")
    counts = (device.handle_bytes, device.workspace_bytes, device.context_bytes, device.other_bytes)
    for holder, nbytes in zip(rest, counts, strict=True):
        yield "device_memory_bytes", {"holder": holder}, nbytes
    named: Counter[str] = Counter()
    for other in device.holders:
        # A series has one value: two files may have one name, and a program may be called as one of these.
        name = other.path if other.name in (*_STATES, *rest) else other.name
        named[printable(name)] += other.nbytes
    for holder, nbytes in named.items():
        yield "device_memory_bytes", {"holder": holder}, nbytes
    yield from _counters("device", {}, device)
    for each in device.frameworks:
        yield from _counters("framework", {"framework": each.framework}, each)


def _of_node(node: _summary.PinnedSummary) -> _Part:
    yield from _states("pinned_memory_bytes", {}, [node])
    yield from _counters("pinned", {}, node)


def _of_pools(device: _summary.DeviceSummary, count: int) -> _Part:
    ranked = sorted(device.pools, key=lambda pool: (pool.name != "default", -pool.reserved_bytes))
    for pool in ranked[:count]:
        labels = {"pool": pool.name}
        yield from _states("pool_memory_bytes", labels, [pool])
        yield from _counters("pool", labels, pool)
        yield "pool_memory_ranges_bytes", labels, _in_ranges(pool)
        yield "pool_memory_limit_bytes", labels, pool.limit
    if rest := ranked[count:]:
        labels = {"pool": "others"}
        yield from _states("pool_memory_bytes", labels, rest)
        yield "pool_memory_ranges_bytes", labels, sum(map(_in_ranges, rest))
        for name, counter in _named("pool", rest[0]):
            # The sum of peaks is no peak of the sum.
            if not counter.startswith("peak_"):
                yield name, labels, sum(getattr(pool, counter) for pool in rest)


def _in_ranges(pool: _summary.PoolSummary) -> int:
    return sum(stream.live_bytes for stream in pool.streams if stream.is_ranges)


def _of_streams(device: _summary.DeviceSummary, count: int) -> _Part:
    every = [(pool, stream) for pool in device.pools for stream in pool.streams]
    every.sort(key=lambda pair: -(pair[1].live_bytes + pair[1].cached_bytes))
    for pool, stream in every[:count]:
        labels = {"pool": pool.name, "stream": hex(stream.stream)}
        yield "stream_memory_bytes", {**labels, "state": "live"}, stream.live_bytes
        yield "stream_memory_bytes", {**labels, "state": "cached"}, stream.cached_bytes


def _of_handles(device: _summary.DeviceSummary) -> _Part:
    for each in device.libraries:
        labels = {"library": each.library}
        for state in ("idle", "held", "leased"):
            yield "handles", {**labels, "state": state}, getattr(each, state)
        yield "handles", {**labels, "state": "discarded"}, each.discarded
        yield "handle_memory_bytes", labels, each.device_bytes
        yield "handle_memory_peak_bytes", labels, each.peak_device_bytes
        yield from _counters("handles", labels, each)
        yield from _counters("handle", labels, each)


def __dir__() -> list[str]:
    return sorted(__all__)
