"""The picture of a trace file: memory over time, the address map of a moment and handles over time."""

import bisect

import gpupool
from gpupool._plot import address_map as _address_map
from gpupool._plot import handle_chart as _handle_chart
from gpupool._plot import timeline as _timeline
from gpupool._plot.picture import AddressMap, Chart, Mark, Picture
from gpupool._plot.pools import Pools
from gpupool._plot.timeline import Timeline
from gpupool._report.units import duration, size
from gpupool._traces import replay as _replay
from gpupool._traces import trace as _trace
from gpupool._traces.trace import TraceFile

# The most failed requests that are marked.
MARKS = 100


def draw(file: TraceFile, moment: str | None) -> Picture:
    """Return the picture of a trace file.

    `moment` is that of the address map: ``end``, ``peak`` or seconds from the start.
    """
    trace = file.trace
    weights = {} if trace is None else _timeline.peaks(trace)
    for segment in file.segments:
        weights[segment.pool] = weights.get(segment.pool, 0) + segment.size
    pools = Pools(weights)
    zero, end = _axis(file)
    timeline = None if trace is None else _timeline.of(trace, pools, zero)
    panels: list[Chart | AddressMap] = []
    facts: list[tuple[str, str]] = []
    if timeline is not None:
        memory = _memory(file, timeline, facts)
        memory.end = max(memory.end, end)
        panels.append(memory)
    found = _addresses(file, timeline, pools, moment)
    if found is not None:
        panels.append(found)
    handles = _handle_chart.chart(file.handle_events, zero, end)
    if handles is not None:
        panels.append(handles)
    if not panels:
        raise _trace.TraceError(
            f"{file.name}: an empty snapshot: no memory, no trace and no handles in it; write it while the "
            "program has memory, after gpupool.record_memory_history() or torch.cuda.memory._record_memory_history()"
        )
    for panel in panels:
        if isinstance(panel, Chart) and panel.axis == "time":
            panel.link = "time"
    return Picture(file.name, _subtitle(file, end), facts, panels)


def _axis(file: TraceFile) -> tuple[int, int]:
    """Return where the axis of time begins, by the file's clock, and its length.

    Handles may be older than memory.
    """
    times = [file.handle_events[0].time, file.handle_events[-1].time] if file.handle_events else []
    if file.trace is not None and file.trace.start is not None:
        times += [file.trace.start, file.trace.start + file.trace.times[-1]]
    return (min(times), max(times) - min(times)) if times else (0, 0)


def _memory(file: TraceFile, timeline: Timeline, facts: list[tuple[str, str]]) -> Chart:
    trace = timeline.trace
    changes = _timeline.changes_of_program(trace)
    label = "reserved"
    if not changes:
        changes = _replay.reserved(trace, "gpupool")
        label = "reserved by gpupool, replayed"
    peak = max(nbytes for _, nbytes in changes)
    facts += [
        ("peak live", size(trace.peak_live)),
        (f"peak {label}", size(peak)),
        ("ratio", f"{peak / trace.peak_live:.3f}"),
    ]
    marks = [
        Mark(
            max(0, failure.time - timeline.zero),
            f"out of memory: {size(failure.size)} asked for, {size(failure.free)} free",
        )
        for failure in file.failures[:MARKS]
        if trace.times
    ]
    if file.failures:
        facts.append(("out of memory", "once" if len(file.failures) == 1 else f"{len(file.failures)} times"))
    lines = [_timeline.reserved_line(timeline, label, "ink", "solid", changes)]
    return _timeline.chart(timeline, "Memory over time", True, lines, marks)


def _addresses(file: TraceFile, timeline: Timeline | None, pools: Pools, moment: str | None) -> AddressMap | None:
    if moment is None:
        moment = "end" if file.segments or timeline is None else "peak"
    if moment == "end" and file.segments:
        return _address_map.of_segments(file, pools, "Address map when the snapshot was written")
    if timeline is None:
        if moment != "end":
            raise gpupool.InvalidValue(f"{file.name}: a snapshot without a trace has no moment but its end")
        return None
    if not timeline.trace.addresses:
        return None
    if moment == "end":
        return _address_map.of_event(timeline, timeline.trace.events - 1, "Address map at the end")
    if moment == "peak":
        event, title = timeline.peak, "Address map at the peak"
    else:
        if not timeline.trace.times:
            raise gpupool.InvalidValue(f"{file.name}: the file has no times; --at takes peak or end")
        x = timeline.zero + round(float(moment) * 1e6) - (timeline.trace.start or 0)
        event, title = max(0, bisect.bisect_right(timeline.trace.times, x) - 1), "Address map"
    where = duration(timeline.x(event)) if timeline.trace.times else f"event {event:,}"
    return _address_map.of_event(timeline, event, f"{title}, {where}")


def _subtitle(file: TraceFile, end: int) -> str:
    parts = ["a log of RMM" if file.device is None else "a memory snapshot"]
    if file.device is not None:
        count = len(file.devices)
        parts.append(f"device {file.device}" + (f" of {count}" if count > 1 else ""))
    trace = file.trace
    if trace is not None:
        parts.append(f"{trace.events:,} event{'s' if trace.events != 1 else ''}")
    if end:
        parts.append(duration(end))
    if trace is not None and trace.cut is not None:
        parts.append(trace.cut)
    return ", ".join(parts)
