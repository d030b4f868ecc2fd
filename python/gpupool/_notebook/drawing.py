"""A picture as HTML with drawings in SVG, for notebooks: it has no script, and follows the page's colour of text.

A notebook is kept with what it shows, so a drawing has few numbers: what would fall on the same pixels is drawn as one,
and no peak is lost. The page of ``gpupool plot`` has every number, and zooms.

https://www.w3.org/TR/SVG2/
"""

from array import array
from collections.abc import Iterator, Sequence

from gpupool._notebook.markup import around, box, element, swatch, title
from gpupool._plot.picture import PALETTE, AddressMap, Chart, Picture, row_size
from gpupool._plot.sampling import kept
from gpupool._report.units import byte_unit, time_unit

# The size of a drawing, in its own units, which are about pixels, and what the numbers at its axes need.
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 900, 250, 58, 36, 18
_RIGHT = _WIDTH - 12
# The height of a row of an address map, and of what is drawn in it.
_ROW, _FILLED = 12, 10.3
# The most numbers of an area or a line, about one for each unit of the width.
_MOST = 1000
# Blocks of an address map that are less wide than this are drawn together with their neighbours.
_NARROW = 1.5
_DASHES = {
    "solid": "",
    "dashed": "7 4",
    "dotted": "2 3",
    "dashdot": "8 3 2 3",
    "longdash": "14 5",
    "dashdotdot": "9 3 2 3 2 3",
}
# How strong the text's colour is for free memory, for what was freed and waits, and for the lines of a grid.
_PALE, _HALF, _GRID = ".13", ".5", ".18"


def html(picture: Picture) -> str:
    """Return the picture as HTML."""
    facts = "; ".join(f"{name} {value}" for name, value in picture.facts)
    parts = [title(picture.title), element("div", f"{picture.subtitle}; {facts}" if facts else picture.subtitle)]
    for panel in picture.panels:
        parts.append(element("div", panel.title, "font-weight:600;margin:.8em 0 .2em"))
        parts += [_legend(panel), _chart(panel)] if isinstance(panel, Chart) else [_map_legend(panel), _map(panel)]
        # Where a chart of bytes has a note, it is of more numbers than are drawn here.
        is_thinner = isinstance(panel, Chart) and panel.unit == "bytes" and len(panel.x) > _MOST
        note = "Drawn from fewer numbers than there are; no peak is lost." if is_thinner else panel.note
        if note:
            parts.append(element("div", note, "font-size:.9em"))
    return box(*parts)


def _paint(colour: str) -> dict[str, str]:
    if colour == "free":
        return {"fill": "currentColor", "fill-opacity": _PALE}
    return {"fill": "currentColor" if colour == "ink" else PALETTE[colour]}


def _stroke(colour: str) -> str:
    return "currentColor" if colour == "ink" else PALETTE[colour]


def _shape(name: str, **attributes: str | float) -> str:
    given = {key.replace("_", "-"): _short(value) for key, value in attributes.items() if value != ""}
    return element(name, "", **given)


def _short(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return element("text", text, x=_short(x), y=_short(y), fill="currentColor", **{"text-anchor": anchor})


def _svg(height: float, label: str, shapes: Sequence[str]) -> str:
    return around(
        "svg",
        "".join(shapes),
        f"display:block;width:100%;min-width:34em;max-width:{_WIDTH}px;height:auto;color:inherit;font:11px sans-serif",
        viewBox=f"0 0 {_WIDTH} {_short(height)}",
        role="img",
        xmlns="http://www.w3.org/2000/svg",
        **{"aria-label": label},
    )


def _ticks(most: float, about: int, is_whole: bool) -> list[float]:
    """Return round numbers from 0 to the most, whole ones of what is counted."""
    step = 1.0
    while most / step > about * 10:
        step *= 10
    while most / step < about / 2:
        step /= 10
    step = next((step * part for part in (1, 2, 5) if most / (step * part) <= about), step * 10)
    step = max(1.0, step) if is_whole else step
    return [step * number for number in range(int(most / step) + 1)]


def _chart(chart: Chart) -> str:
    tops: list[list[int]] = []
    for area in chart.areas:
        tops.append([below + value for below, value in zip(tops[-1], area.y, strict=True)] if tops else area.y)
    largest = max(1, *(max(top) for top in tops), *(max(line.y, default=0) for line in chart.lines))
    name, unit = time_unit(chart.end) if chart.axis == "time" else ("", 1)
    label, scale = byte_unit(largest) if chart.unit == "bytes" else ("handles", 1)
    bottom = _HEIGHT - _BOTTOM

    def x(at: float) -> float:
        return _LEFT + at / max(chart.end, 1) * (_RIGHT - _LEFT)

    def y(value: float) -> float:
        return bottom - value / (1.05 * largest) * (bottom - _TOP)

    def steps(times: Sequence[int], values: Sequence[int]) -> Iterator[str]:
        # Each value stays until the next; what falls on the same pixels is left out, but for peaks.
        for place in kept([array("q", values)], _MOST):
            yield f"H{_short(x(times[place]))}V{_short(y(values[place]))}"
        yield f"H{_short(x(chart.end))}"

    shapes = []
    # The lowest area comes last, and hides those behind it.
    for area, top in reversed(list(zip(chart.areas, tops, strict=True))):
        path = f"M{_short(x(chart.x[0]))} {bottom}{''.join(steps(chart.x, top))}V{bottom}Z"
        shapes.append(_shape("path", d=path, stroke=_stroke(area.colour), stroke_width=0.6, **_paint(area.colour)))
    for tick in _ticks(largest / scale, 5, chart.unit == "handles"):
        at = y(tick * scale)
        shapes.append(_shape("path", d=f"M{_LEFT} {_short(at)}H{_RIGHT}", stroke="currentColor", stroke_opacity=_GRID))
        shapes.append(_text(_LEFT - 6, at + 4, f"{tick:g}", "end"))
    for line in chart.lines:
        if line.x:
            path = f"M{_short(x(line.x[0]))} {_short(y(line.y[0]))}{''.join(steps(line.x, line.y))}"
            stroke, dash = _stroke(line.colour), _DASHES[line.dash]
            shapes.append(_shape("path", d=path, fill="none", stroke=stroke, stroke_width=1.5, stroke_dasharray=dash))
    for mark in chart.marks:
        path = f"M{_short(x(mark.x))} {_TOP}V{bottom}"
        drawn = {"d": path, "stroke": PALETTE["vermillion"], "stroke-width": "1.2", "stroke-dasharray": "4 3"}
        shapes.append(around("path", element("title", mark.label), **drawn))
    for tick in _ticks(chart.end / unit, 8, not name):
        shapes.append(_text(x(tick * unit), bottom + 14, f"{tick:g}", "middle"))
    shapes.append(_text((_LEFT + _RIGHT) / 2, bottom + 30, f"time ({name})" if name else "event", "middle"))
    shapes.append(_text(2, 11, label, "start"))
    return _svg(_HEIGHT, chart.title, shapes)


def _legend(chart: Chart) -> str:
    entries = [(swatch(PALETTE.get(area.colour, "currentColor")), area.label) for area in chart.areas]
    lines = [(_stroke(line.colour), _DASHES[line.dash], line.label) for line in chart.lines]
    if chart.marks:
        lines.append((PALETTE["vermillion"], "4 3", "out of memory"))
    for stroke, dash, label in lines:
        drawn = _shape("path", d="M0 4H26", stroke=stroke, stroke_width=1.5, stroke_dasharray=dash)
        entries.append((around("svg", drawn, "margin-right:.35em", width="26", height="8"), label))
    return _entries(entries)


def _entries(entries: Sequence[tuple[str, str]]) -> str:
    shown = (around("span", mark + element("span", label), "margin-right:1.2em") for mark, label in entries)
    return around("div", " ".join(shown), "font-size:.9em;margin-bottom:.2em")


def _map(found: AddressMap) -> str:
    per_row = row_size(found.size)
    rows = -(-found.size // per_row)
    unit = (_RIGHT - _LEFT) / per_row
    paths: dict[str, list[str]] = {}
    for row, left, right, look in _pieces(found, per_row, unit):
        # A gap, which shows where blocks end on any ground, but for blocks that are hardly wider than it.
        width = right - left - (0.5 if right - left > 2 * _NARROW else 0)
        box_of_piece = f"M{_short(_LEFT + left)} {_short(row * _ROW)}h{width:.2f}v{_FILLED}h-{width:.2f}z"
        paths.setdefault(look, []).append(box_of_piece)
    shapes = []
    for look, boxes in paths.items():
        paint = {"fill": "currentColor", "fill-opacity": _HALF} if look == "waiting" else _paint(look)
        shapes.append(_shape("path", d="".join(boxes), **paint))
    starts = (
        f"M{_short(_LEFT + region.start % per_row * unit)} {region.start // per_row * _ROW}v{_FILLED}"
        for region in found.regions
    )
    shapes.append(_shape("path", d="".join(starts), stroke="currentColor", stroke_width=1.2))
    # Every fourth row says where it begins.
    name, nbytes = byte_unit(4 * per_row)
    for row in range(0, rows, 4):
        shapes.append(_text(_LEFT - 6, row * _ROW + 9, f"{row * per_row // nbytes:,}", "end"))
    shapes.append(_text(2, rows * _ROW + 14, name, "start"))
    width_name, width_bytes = byte_unit(per_row)
    told = f"each row is {per_row / width_bytes:g} {width_name}, and goes on where the one above ends"
    shapes.append(_text((_LEFT + _RIGHT) / 2, rows * _ROW + 14, told, "middle"))
    return _svg(rows * _ROW + 20, found.title, shapes)


def _pieces(found: AddressMap, per_row: int, unit: float) -> Iterator[tuple[int, float, float, str]]:
    """Yield what is drawn: the row, the left and the right end of a box, and what it looks like."""
    last: tuple[int, float, float, str] | None = None
    for block in found.blocks:
        look = found.names[block.colour][1] if block.state == "live" else block.state
        at, end = block.start, block.start + block.size
        while at < end:
            row = at // per_row
            stop = min(end, (row + 1) * per_row)
            piece = (row, (at - row * per_row) * unit, (stop - row * per_row) * unit, look)
            at = stop
            if last is not None and last[0] == row and min(last[2] - last[1], piece[2] - piece[1]) < _NARROW:
                wider = last[3] if last[2] - last[1] >= piece[2] - piece[1] else look
                last = (row, last[1], piece[2], wider)
            else:
                if last is not None:
                    yield last
                last = piece
    if last is not None:
        yield last


def _map_legend(found: AddressMap) -> str:
    entries = [(swatch(PALETTE[colour]), name) for name, colour, is_drawn in found.names if is_drawn]
    states = {block.state for block in found.blocks}
    for state, strength, label in (
        ("waiting", _HALF, "freed, awaiting other streams"),
        ("free", _PALE, found.free_label),
    ):
        if state in states:
            square = _shape("rect", width=10, height=10, fill="currentColor", fill_opacity=strength)
            entries.append((around("svg", square, "margin-right:.35em", width="10", height="10"), label))
    bar = _shape("path", d="M2 0v10", stroke="currentColor", stroke_width=1.2)
    entries.append((around("svg", bar, "margin-right:.35em", width="5", height="10"), found.region_label))
    return _entries(entries)
