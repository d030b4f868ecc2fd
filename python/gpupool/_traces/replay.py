"""The replay: the allocations of a trace file once more, and the memory and time that they take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import gpupool
from gpupool import _native
from gpupool._report.units import size
from gpupool._traces import pytorch
from gpupool._traces.progress import Progress, Turn
from gpupool._traces.trace import Trace

# The simulated device's memory unless GPUPOOL_HOST_MEMORY is set: traces of any device fit, with many threads too.
HOST_MEMORY = 1500 << 30

ALLOCATORS = ("gpupool", "driver", "async")
# The allocator that the program ran with, of which only the memory is known.
RECORDED = "recorded"
# PyTorch's own allocator, by default and with expandable segments, of which the memory is simulated.
SIMULATED = {"torch": False, "torch-exp": True}
# The most changes of what is reserved that `reserved` returns.
_MOST_CHANGES = 8000


@dataclass(frozen=True)
class Row:
    """The memory and time that one allocator took for one trace."""

    trace: str
    allocator: str
    events: int
    peak_live: int
    peak_reserved: int | None
    ratio: float | None
    driver_calls: int | None = None
    moved_pages: int | None = None
    cold_ns: float | None = None
    warm_ns: float | None = None
    out_of_memory: str | None = None
    """What there was as the device's memory ran out, as the end of a sentence; None where the trace fits."""
    fails_at: int | None = None
    """The number of the event at which it did, where that is known."""
    changes: list[tuple[int, int]] = field(default_factory=list, repr=False)
    """The bytes reserved at each change, as (event, bytes), if a picture is to be drawn; where memory ran out, up to
    then."""


def rows(
    trace: Trace,
    threads: int,
    allocators: Sequence[str],
    compare: bool,
    *,
    lag: int = 0,
    draw: bool = False,
    turn: Turn | None = None,
) -> Iterator[Row]:
    """Replay the trace in every one of the threads at once, with each allocator, and yield a row as soon as it is done.

    Args:
        trace: The trace.
        threads: The number of threads.
        allocators: The allocators that serve the requests.
        compare: Tell of PyTorch's allocator as well, simulated, and of the program's own, if the trace does; and of
            each for which the trace does not fit.
        lag: How many pieces of work the simulated device lags behind.
        draw: Tell what was reserved at each change.
        turn: The trace's place among several.
    """
    # No more can be live than if the threads reached their peaks at the same moment.
    peak_live = threads * trace.peak_live

    def row(allocator: str, peak: int | None, **more: Any) -> Row:
        ratio = None if peak is None else peak / peak_live
        return Row(trace.name, allocator, trace.events, peak_live, peak, ratio, **more)

    most = _MOST_CHANGES if draw else 0
    for allocator in allocators:
        try:
            with Progress(f"replaying {trace.name} with {allocator}", turn) as progress:
                result = _native.replay(
                    trace.slots, trace.sizes, trace.streams, trace.slot_count, threads, allocator, progress, most, lag
                )
        except gpupool.OutOfMemory as error:
            if not compare:
                raise
            yield row(allocator, None, out_of_memory=_reason(error))
            continue
        yield row(
            allocator,
            result.peak_reserved,
            driver_calls=result.driver_calls,
            moved_pages=result.moved_pages,
            cold_ns=result.cold_ns,
            warm_ns=result.warm_ns,
            changes=result.reserved if draw else [],
        )
    # The program ran once, whatever the number of threads that replay its trace.
    if compare and threads == 1:
        capacity = _native.device_info(gpupool.current_device())["total_bytes"]
        for allocator in SIMULATED:
            found = simulated(trace, allocator, capacity, turn)
            changes = found.changes if draw else []
            shortage, fails_at = _shortage(found), found.fails_at
            yield row(allocator, found.peak_reserved, out_of_memory=shortage, fails_at=fails_at, changes=changes)
        if trace.reserved:
            yield row(RECORDED, max(trace.reserved))


def _reason(error: gpupool.OutOfMemory) -> str:
    """Return what an error says was asked for, as the end of a sentence."""
    return ": " + str(error).split("; ", 1)[0].split(": ", 1)[-1]


def _shortage(found: pytorch.Simulation) -> str | None:
    """Return where memory ran out and what there was, as the end of a sentence; None if it did not."""
    short = found.shortage
    if short is None:
        return None
    pieces = f", in pieces of at most {size(short.largest)}" if short.free else ""
    return (
        f" at event {found.fails_at:,}: {size(short.requested)} asked for, {size(short.live)} in use, "
        f"{size(short.free)} reserved and free{pieces}, {size(short.left)} not reserved"
    )


def simulated(trace: Trace, allocator: str, capacity: int, turn: Turn | None = None) -> pytorch.Simulation:
    """Return what PyTorch's own allocator would have reserved on a device, by the name of its kind in `SIMULATED`."""
    with Progress(f"simulating {trace.name} with {allocator}", turn) as progress:
        return pytorch.simulate(trace, expandable=SIMULATED[allocator], capacity=capacity, watch=progress)


def reserved(trace: Trace, allocator: str) -> list[tuple[int, int]]:
    """Replay a trace and return what an allocator has reserved: (event, bytes after it) at each change."""
    with Progress(f"drawing {trace.name} with {allocator}") as progress:
        return _native.replay_reserved(
            trace.slots, trace.sizes, trace.streams, trace.slot_count, _MOST_CHANGES, allocator, progress
        )
