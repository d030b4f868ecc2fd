"""The chart of what several allocators reserve for one trace, over what its program had."""

from collections.abc import Sequence

from gpupool._plot import timeline as _timeline
from gpupool._plot.picture import Chart, Dash, Line, Mark
from gpupool._plot.pools import Pools
from gpupool._traces.replay import RECORDED, Row
from gpupool._traces.trace import Trace

# The name, the colour and the dash of each allocator.
_DRAWN: dict[str, tuple[str, str, Dash]] = {
    "gpupool": ("reserved by gpupool", "blue", "solid"),
    "driver": ("by the driver (cuMemAlloc)", "ink", "dotted"),
    "async": ("by the driver's pool (cuMemAllocAsync)", "green", "dashdot"),
    "torch": ("by PyTorch (simulated)", "orange", "longdash"),
    "torch-exp": ("by PyTorch, expandable segments (simulated)", "purple", "dashdotdot"),
    RECORDED: ("as recorded", "vermillion", "dashed"),
}


def chart(trace: Trace, rows: Sequence[Row]) -> Chart:
    """Return a chart with a line for each allocator of the rows, which ends where its memory ran out."""
    timeline = _timeline.of(trace, Pools(_timeline.peaks(trace)), trace.start or 0)
    lines: list[Line] = []
    marks: list[Mark] = []
    for row in rows:
        changes = _timeline.changes_of_program(trace) if row.allocator == RECORDED else row.changes
        if not changes:
            continue
        name, colour, dash = _DRAWN[row.allocator]
        line = _timeline.reserved_line(timeline, name, colour, dash, changes)
        if row.fails_at is not None:
            line.x.append(timeline.x(row.fails_at))
            line.y.append(0)
            line.label += ", out of memory"
            marks.append(Mark(line.x[-1], f"out of memory: {name}"))
        lines.append(line)
    title = f"{trace.name}, device {trace.device}" if trace.device_count > 1 else trace.name
    return _timeline.chart(timeline, title, False, lines, marks)
