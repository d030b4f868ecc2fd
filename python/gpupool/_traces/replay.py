"""The replay: the allocations of a recorded program once more, and the memory and time that they take."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import gpupool
from gpupool import _native
from gpupool._plot import output as _output
from gpupool._plot import timeline as _timeline
from gpupool._plot.picture import AddressMap, Chart, Dash, Line, Picture
from gpupool._plot.pools import Pools
from gpupool._report.units import size
from gpupool._traces import trace as _trace
from gpupool._traces.progress import Progress
from gpupool._traces.trace import Trace

# The simulated device's memory unless GPUPOOL_HOST_MEMORY is set: traces of any device fit, with many threads too.
HOST_MEMORY = 1500 << 30

ALLOCATORS = ("gpupool", "driver", "async")
RECORDED = "recorded"
# How each allocator is drawn: what it is called, its colour and its dash.
_DRAWN: dict[str, tuple[str, str, Dash]] = {
    "gpupool": ("reserved by gpupool", "blue", "solid"),
    "driver": ("by the driver (cuMemAlloc)", "ink", "dotted"),
    "async": ("by the driver's pool (cuMemAllocAsync)", "green", "dashdot"),
    RECORDED: ("as recorded", "vermillion", "dashed"),
}
# Changes of what is reserved that are drawn, at most.
_MOST_CHANGES = 8000


@dataclass(frozen=True)
class Row:
    """What one allocator took for one trace. What was recorded tells no more than the memory."""

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


def run(
    paths: Sequence[str],
    threads: int = 1,
    allocator: str = "gpupool",
    as_json: bool = False,
    compare: bool = False,
    output: str | None = None,
) -> None:
    """Replay each trace in every one of the threads at once, and print a line for each trace as soon as it is done.

    To compare is to replay with every allocator that can be had here, and to show what was recorded as well, if the
    trace tells. With an output a picture is drawn too.
    """
    if output is not None:
        _output.check(output)
    os.environ.setdefault("GPUPOOL_HOST_MEMORY", str(HOST_MEMORY))
    runtime = gpupool.runtime()
    if allocator != "gpupool" and runtime == "host":
        raise gpupool.RuntimeUnavailable(
            f"--allocator {allocator} needs a GPU, and runtime host simulates one: leave the option out, or run where "
            "there is a CUDA driver and GPUPOOL_RUNTIME does not say host"
        )
    allocators = [allocator] if not compare else ["gpupool"] if runtime == "host" else list(ALLOCATORS)
    width = max(len("trace"), *(len(os.path.basename(path)) for path in paths))
    if not as_json:
        where = "host (simulated device)" if runtime == "host" else runtime
        what = "allocators compared" if compare else f"allocator {allocator}"
        print(f"runtime {where}, {what}, {threads} thread{'s' if threads > 1 else ''}")
        if compare and runtime == "host":
            print("the driver's own allocators need a GPU, and are left out")
        print(
            f"{'trace':<{width}} {'allocator ' if compare else ''}{'events':>8} {'peak live':>10} {'peak reserved':>13}"
            f" {'ratio':>6} {'driver calls':>12} {'moved pages':>11} {'cold ns':>8} {'warm ns':>8}",
            flush=True,
        )
    charts: list[Chart | AddressMap] = []
    for path in paths:
        with Progress(f"reading {os.path.basename(path)}") as progress:
            trace = _trace.read(path, progress)
        for row in _rows(trace, threads, allocators, compare):
            print(_as_json(row, compare) if as_json else _as_text(row, width, compare), flush=True)
        if not as_json and trace.device_count > 1:
            print(f"  device {trace.device}, which has most events of {trace.device_count} devices", flush=True)
        if output is not None:
            charts.append(_chart(trace, allocators, compare))
    if output is not None:
        title = "Allocators compared" if compare else f"Replay with {allocator}"
        where = "a simulated device" if runtime == "host" else runtime
        subtitle = f"what programs asked for, and what allocators reserved for it in a replay on {where}"
        _output.write(output, Picture(title, subtitle, [], charts))
        if not as_json:
            print(f"wrote {output}")


def _rows(trace: Trace, threads: int, allocators: Sequence[str], compare: bool) -> Iterator[Row]:
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
    # The program was recorded once, whatever the number of threads that replay it.
    if compare and trace.reserved and threads == 1:
        peak = max(trace.reserved)
        yield Row(trace.name, RECORDED, trace.events, peak_live, peak, peak / peak_live)


def _as_json(row: Row, compare: bool) -> str:
    line = asdict(row)
    if not compare:
        del line["allocator"]
    for name, digits in (("ratio", 4), ("cold_ns", 1), ("warm_ns", 1)):
        line[name] = None if line[name] is None else round(line[name], digits)
    return json.dumps(line)


def _as_text(row: Row, width: int, compare: bool) -> str:
    def whole(number: float | None) -> str:
        return "-" if number is None else f"{number:.0f}"

    return (
        f"{row.trace:<{width}} {f'{row.allocator:<9} ' if compare else ''}{row.events:>8} {size(row.peak_live):>10}"
        f" {size(row.peak_reserved):>13} {row.ratio:>6.3f} {whole(row.driver_calls):>12} {whole(row.moved_pages):>11}"
        f" {whole(row.cold_ns):>8} {whole(row.warm_ns):>8}"
    )


def reserved(trace: Trace, allocator: str) -> list[tuple[int, int]]:
    """What an allocator has reserved for a trace: (event, bytes after it) at each change; in a replay of its own."""
    with Progress(f"drawing {trace.name} with {allocator}") as progress:
        return _native.replay_reserved(
            trace.slots, trace.sizes, trace.streams, trace.slot_count, _MOST_CHANGES, allocator, progress
        )


def _chart(trace: Trace, allocators: Sequence[str], compare: bool) -> Chart:
    timeline = _timeline.of(trace, Pools(_timeline.peaks(trace)), trace.start or 0)
    changes = {allocator: reserved(trace, allocator) for allocator in allocators}
    if compare and trace.reserved:
        changes[RECORDED] = _timeline.recorded_changes(trace)
    lines: list[Line] = [_timeline.reserved_line(timeline, *_DRAWN[name], found) for name, found in changes.items()]
    title = f"{trace.name}, device {trace.device}" if trace.device_count > 1 else trace.name
    return _timeline.chart(timeline, title, False, lines, [])
