"""The chart of what several allocators reserve for one trace, over what its program had."""

from collections.abc import Sequence

from gpupool._plot import timeline as _timeline
from gpupool._plot.picture import Chart, Dash, Line
from gpupool._plot.pools import Pools
from gpupool._traces.replay import RECORDED, reserved
from gpupool._traces.trace import Trace

# The name, the colour and the dash of each allocator.
_DRAWN: dict[str, tuple[str, str, Dash]] = {
    "gpupool": ("reserved by gpupool", "blue", "solid"),
    "driver": ("by the driver (cuMemAlloc)", "ink", "dotted"),
    "async": ("by the driver's pool (cuMemAllocAsync)", "green", "dashdot"),
    RECORDED: ("as recorded", "vermillion", "dashed"),
}


def chart(trace: Trace, allocators: Sequence[str], compare: bool) -> Chart:
    """Return a chart with a line for each allocator; to compare, also for the program's own, if the trace tells."""
    timeline = _timeline.of(trace, Pools(_timeline.peaks(trace)), trace.start or 0)
    changes = {allocator: reserved(trace, allocator) for allocator in allocators}
    if compare and trace.reserved:
        changes[RECORDED] = _timeline.changes_of_program(trace)
    lines: list[Line] = [_timeline.reserved_line(timeline, *_DRAWN[name], found) for name, found in changes.items()]
    title = f"{trace.name}, device {trace.device}" if trace.device_count > 1 else trace.name
    return _timeline.chart(timeline, title, False, lines, [])
