"""The replay: the allocations of a trace file once more, and the memory and time that they take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpupool import _native
from gpupool._traces import pytorch
from gpupool._traces.progress import Progress
from gpupool._traces.trace import Trace

# The simulated device's memory unless GPUPOOL_HOST_MEMORY is set: traces of any device fit, with many threads too.
HOST_MEMORY = 1500 << 30

# The most threads of a replay.
MAX_THREADS = 1024

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
    peak_reserved: int
    ratio: float
    driver_calls: int | None = None
    moved_pages: int | None = None
    cold_ns: float | None = None
    warm_ns: float | None = None


def rows(trace: Trace, threads: int, allocators: Sequence[str], compare: bool) -> Iterator[Row]:
    """Replay the trace in every one of the threads at once, with each allocator, and yield a row as soon as it is done.

    To compare is to tell of PyTorch's allocator as well, simulated, and of the program's own, if the trace does.
    """
    # No more can be live than if the threads reached their peaks at the same moment.
    peak_live = threads * trace.peak_live
    for allocator in allocators:
        with Progress(f"replaying {trace.name} with {allocator}") as progress:
            result = _native.replay(
                trace.slots, trace.sizes, trace.streams, trace.slot_count, threads, allocator, progress
            )
        yield Row(
            trace=trace.name,
            allocator=allocator,
            events=trace.events,
            peak_live=peak_live,
            peak_reserved=result.peak_reserved,
            ratio=result.peak_reserved / peak_live,
            driver_calls=result.driver_calls,
            moved_pages=result.moved_pages,
            cold_ns=result.cold_ns,
            warm_ns=result.warm_ns,
        )
    # The program ran once, whatever the number of threads that replay its trace.
    if compare and threads == 1:
        for allocator in SIMULATED:
            peak = simulated(trace, allocator).peak_reserved
            yield Row(trace.name, allocator, trace.events, peak_live, peak, peak / peak_live)
        if trace.reserved:
            peak = max(trace.reserved)
            yield Row(trace.name, RECORDED, trace.events, peak_live, peak, peak / peak_live)


def simulated(trace: Trace, allocator: str) -> pytorch.Simulation:
    """Return what PyTorch's own allocator would have reserved, by the name of its kind in `SIMULATED`."""
    with Progress(f"simulating {trace.name} with {allocator}") as progress:
        return pytorch.simulate(trace, expandable=SIMULATED[allocator], watch=progress)


def reserved(trace: Trace, allocator: str) -> list[tuple[int, int]]:
    """Replay a trace and return what an allocator has reserved: (event, bytes after it) at each change."""
    with Progress(f"drawing {trace.name} with {allocator}") as progress:
        return _native.replay_reserved(
            trace.slots, trace.sizes, trace.streams, trace.slot_count, _MOST_CHANGES, allocator, progress
        )
