"""A picture as a matplotlib figure, and as a PNG file's bytes."""

import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from gpupool._plot.picture import PALETTE, AddressMap, Chart, Picture, Place, row_size
from gpupool._report.units import byte_unit, time_unit

# Dashes that matplotlib has no name for, in the widths of the line.
_DASHES: dict[str, Any] = {"longdash": (0, (9, 3)), "dashdotdot": (0, (6, 2, 1, 2, 1, 2))}
_HEIGHTS = {"chart": 3.4, "map": 3.6}


def png(picture: Picture) -> bytes:
    """Return the picture as the bytes of a PNG file."""
    content = io.BytesIO()
    figure(picture).savefig(content, format="png", dpi=130)
    return content.getvalue()


def figure(picture: Picture) -> Figure:
    """Return the picture as a figure with its panels one below the other."""
    heights = [_HEIGHTS[panel.kind] for panel in picture.panels]
    drawn = Figure(figsize=(11, sum(heights) + 0.7), layout="constrained")
    FigureCanvasAgg(drawn)
    # A dollar sign in a file's name is no mathematics.
    drawn.suptitle(f"{picture.title}\n{picture.subtitle}", fontsize=11, parse_math=False)
    grid = drawn.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid[:, 0], picture.panels, strict=True):
        if isinstance(panel, Chart):
            _chart(axes, panel)
        else:
            _map(axes, panel)
    return drawn


def _chart(axes: Axes, chart: Chart) -> None:
    if chart.axis == "time":
        name, unit = time_unit(chart.end)
        axes.set_xlabel(f"time ({name})")
    else:
        unit = 1
        axes.set_xlabel("event")
    tops = _tops(chart)
    largest = max(1, *(max(top) for top in tops), *(max(line.y, default=0) for line in chart.lines))
    if chart.unit == "bytes":
        label, scale = byte_unit(largest)
        axes.set_ylabel(label)
    else:
        scale = 1
        axes.set_ylabel("handles")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    legend: list[Any] = []
    # The value of the last point holds until the end.
    x = [at / unit for at in [*chart.x, chart.end]]
    # A peak thinner than a pixel is seen by its outline. The lowest area comes last, so that its outline hides those of
    # areas without height on it.
    for area, top in reversed(list(zip(chart.areas, tops, strict=True))):
        values = [value / scale for value in [*top, top[-1]]]
        axes.fill_between(x, 0, values, step="post", color=PALETTE[area.colour], linewidth=0.6)
        legend.insert(0, Patch(color=PALETTE[area.colour], label=area.label))
    for line in chart.lines:
        dash = _DASHES.get(line.dash, line.dash)
        axes.step(
            [at / unit for at in [*line.x, chart.end]],
            [value / scale for value in [*line.y, line.y[-1]]],
            where="post",
            color=PALETTE[line.colour],
            linestyle=dash,
            linewidth=1.4,
        )
        legend.append(Line2D([], [], color=PALETTE[line.colour], linestyle=dash, linewidth=1.4, label=line.label))
    for mark in chart.marks:
        axes.axvline(mark.x / unit, color=PALETTE["vermillion"], linewidth=1, linestyle="dashed")
    if chart.marks:
        legend.append(Line2D([], [], color=PALETTE["vermillion"], linestyle="dashed", label="out of memory"))
    axes.set_xlim(0, max(chart.end, 1) / unit)
    axes.set_ylim(0, largest / scale * 1.05)
    axes.grid(alpha=0.3)
    _legend(axes, chart.title, legend)


def _tops(chart: Chart) -> list[list[int]]:
    """Return the upper edge of each area, which lies on those below it."""
    tops: list[list[int]] = []
    for area in chart.areas:
        tops.append([below + value for below, value in zip(tops[-1], area.y, strict=True)] if tops else area.y)
    return tops


def _legend(axes: Axes, title: str, entries: list[Any]) -> None:
    """Draw the legend above the axes, and the title above it."""
    longest = max(len(entry.get_label()) for entry in entries)
    columns = 1 if longest > 68 else 2 if longest > 45 or len(entries) < 5 else 3
    rows = -(-len(entries) // columns)
    axes.legend(
        handles=entries,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        frameon=False,
        fontsize=9,
        borderpad=0.2,
    )
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=8 + 14 * rows, parse_math=False)


def _map(axes: Axes, found: AddressMap) -> None:
    per_row = row_size(found.size)
    label, scale = byte_unit(max(1, per_row // 8))
    boxes, colours, hatched = [], [], []
    for block in found.blocks:
        for left, right, row in _rows(block, per_row):
            box = [(x / scale, y) for x, y in ((left, row), (right, row), (right, row + 0.86), (left, row + 0.86))]
            if block.state == "waiting":
                hatched.append(box)
                continue
            boxes.append(box)
            colours.append(PALETTE["free" if block.state == "free" else found.names[block.colour][1]])
    # White lines tell neighbours apart, but would hide blocks thinner than they are.
    axes.add_collection(PolyCollection(boxes, facecolors=colours, edgecolors="none", antialiaseds=False))
    seen = per_row / 400
    axes.vlines(
        [block.start % per_row / scale for block in found.blocks if block.size > seen],
        [block.start // per_row for block in found.blocks if block.size > seen],
        [block.start // per_row + 0.86 for block in found.blocks if block.size > seen],
        colors="white",
        linewidths=0.5,
    )
    axes.add_collection(
        PolyCollection(hatched, facecolors="white", edgecolors=PALETTE["ink"], hatch="////", linewidths=0.3)
    )
    starts = [region.start for region in found.regions]
    axes.vlines(
        [start % per_row / scale for start in starts],
        [start // per_row for start in starts],
        [start // per_row + 0.86 for start in starts],
        colors=PALETTE["ink"],
        linewidths=1.2,
    )
    legend: list[Any] = [Patch(color=PALETTE[colour], label=name) for name, colour, is_drawn in found.names if is_drawn]
    if hatched:
        legend.append(
            Patch(facecolor="white", edgecolor=PALETTE["ink"], hatch="////", label="freed, awaiting other streams")
        )
    if any(block.state == "free" for block in found.blocks):
        legend.append(Patch(color=PALETTE["free"], label=found.free_label))
    legend.append(
        Line2D([], [], color=PALETTE["ink"], marker="|", linestyle="none", markersize=9, label=found.region_label)
    )
    axes.set_xlim(0, per_row / scale)
    axes.set_ylim(-(-found.size // per_row), 0)
    axes.set_xticks([part * per_row / 8 / scale for part in range(9)])
    axes.xaxis.set_major_formatter("{x:g}")
    # Every fourth row says where it begins, in a unit that is whole there.
    name, unit = byte_unit(4 * per_row)
    rows = range(0, -(-found.size // per_row) + 1, 4)
    axes.set_yticks(rows, [f"{row * per_row // unit:,}" for row in rows])
    axes.set_ylabel(name)
    axes.set_xlabel(f"{label}, each row goes on where the one above ends\n{found.note}")
    _legend(axes, found.title, legend)


def _rows(block: Place, per_row: int) -> list[tuple[int, int, int]]:
    """Return the parts of a block in each row: left, right, row."""
    parts = []
    at, end = block.start, block.start + block.size
    while at < end:
        row = at // per_row
        right = min(end, (row + 1) * per_row)
        parts.append((at - row * per_row, right - row * per_row, row))
        at = right
    return parts
