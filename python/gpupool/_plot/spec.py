"""A picture as a specification of Vega-Lite, of which one renderer makes a PNG, an SVG and a page that zooms.

Numbers stand in columns, which Vega-Lite makes rows of, in the units of their axes. What has the colour of the text is
``currentColor``, so that a page or a notebook chooses it.

https://vega.github.io/vega-lite/docs/
"""

import bisect
import enum
import json
from collections.abc import Iterator, Sequence
from typing import Any

from gpupool._plot.picture import PALETTE, AddressMap, Chart, Picture, row_size
from gpupool._report.units import byte_unit, size, time_unit

Spec = dict[str, Any]

# The size of a panel without its legend and axes, in pixels, and of a row of an address map.
WIDTH, _HEIGHT, _ROW = 900, 260, 12
# How much of a row is filled, and the part of it that stays free behind a block that is wide enough.
_FILLED, _GAP = 0.86, 1 / 1800
_DASHES = {
    "solid": [1, 0],
    "dashed": [7, 4],
    "dotted": [2, 3],
    "dashdot": [8, 3, 2, 3],
    "longdash": [14, 5],
    "dashdotdot": [9, 3, 2, 3, 2, 3],
}
_COLOURS = {**PALETTE, "ink": "currentColor", "free": "rgba(128,128,128,0.22)", "waiting": "rgba(128,128,128,0.75)"}
_WAITING = "freed, awaiting other streams"
_OUT_OF_MEMORY = "out of memory"


class Use(enum.Enum):
    """What a specification is for: an image, or a page that zooms and tells what is under the cursor."""

    IMAGE = enum.auto()
    PAGE = enum.auto()


def text(picture: Picture, use: Use) -> str:
    """Return the specification of a picture as JSON; names may hold what is no Unicode, which is shown as marks."""
    return json.dumps(of(picture, use), separators=(",", ":"), ensure_ascii=False).encode(errors="replace").decode()


def of(picture: Picture, use: Use) -> Spec:
    """Return the specification of a picture, its panels one below the other."""
    facts = "; ".join(f"{name} {value}" for name, value in picture.facts)
    panels = [
        _chart(panel, use, number) if isinstance(panel, Chart) else _map(panel, use, number)
        for number, panel in enumerate(picture.panels)
    ]
    inked = dict.fromkeys(("labelColor", "titleColor"), "currentColor")
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": {
            "text": picture.title,
            "subtitle": [picture.subtitle, *([facts] if facts else [])],
            "anchor": "start",
            "offset": 14,
        },
        "vconcat": panels,
        "resolve": {"scale": dict.fromkeys(("fill", "stroke", "strokeDash"), "independent")},
        "params": [*_zooms(picture)] if use is Use.PAGE else [],
        "config": {
            "aria": use is Use.PAGE,
            "background": None,
            "title": {"color": "currentColor", "subtitleColor": "currentColor", "fontSize": 14, "subtitlePadding": 4},
            "axis": {
                **inked,
                "domainColor": "currentColor",
                "tickColor": "currentColor",
                "gridColor": "rgba(128,128,128,0.18)",
                "titleFontWeight": "normal",
            },
            "legend": {
                **inked,
                "orient": "top",
                "title": None,
                "labelLimit": 0,
                "offset": 4,
                "symbolSize": 110,
                # A page's letters may be wider than those that were measured.
                "columnPadding": 30,
                "layout": {"top": {"direction": "horizontal", "margin": 40, "anchor": "start"}},
            },
            "view": {"stroke": None},
            "concat": {"spacing": 30},
        },
    }


def _zooms(picture: Picture) -> Iterator[Spec]:
    """Yield what zooms: charts by their axis, together if they share it, a map both ways."""
    links: dict[str, list[str]] = {}
    for number, panel in enumerate(picture.panels):
        link = panel.link if isinstance(panel, Chart) and panel.link else f"panel{number}"
        links.setdefault(link, []).append(f"panel{number}")
    for number, views in enumerate(links.values()):
        is_chart = isinstance(picture.panels[int(views[0].removeprefix("panel"))], Chart)
        select = {"type": "interval", "encodings": ["x"] if is_chart else ["x", "y"]}
        yield {"name": f"zoom{number}", "select": select, "bind": "scales", "views": views}


def _panel(title: str, note: str, height: float, layers: list[Spec]) -> Spec:
    told = {"text": title, "fontSize": 13, "anchor": "start", "frame": "group", "offset": 4} | (
        {"subtitle": note} if note else {}
    )
    return {"title": told, "width": WIDTH, "height": height, "layer": layers}


def _columns(**columns: Sequence[Any]) -> Spec:
    """Return data of columns of the same length, and the transform that makes rows of them."""
    return {"data": {"values": [columns]}, "transform": [{"flatten": list(columns)}]}


def _legend(entries: dict[str, str], symbol: str) -> Spec:
    """Return the scale and the legend of labels and colours."""
    longest = max(map(len, entries))
    columns = 1 if longest > 68 else 2 if longest > 45 or len(entries) < 5 else 3
    return {
        "scale": {"domain": list(entries), "range": list(entries.values())},
        # The edge of a square has the colour of another.
        "legend": {"columns": columns, "symbolType": symbol, "symbolStrokeWidth": 0 if symbol == "square" else 1.5},
    }


def _chart(chart: Chart, use: Use, number: int) -> Spec:
    # What is zoomed must end at the axes.
    clip = {"clip": True} if use is Use.PAGE else {}
    name, unit = time_unit(chart.end) if chart.axis == "time" else ("", 1)
    largest = max(1, *(max(top) for top in chart.tops), *(max(line.y, default=0) for line in chart.lines))
    label, scale = byte_unit(largest) if chart.unit == "bytes" else ("handles", 1)
    end = max(chart.end, 1)
    axis = {"title": f"time ({name})" if name else "event", "tickMinStep": 0 if name else 1, "tickCount": 8}
    x = {"field": "x", "type": "quantitative", "axis": axis, "scale": {"domain": [0, end / unit], "nice": False}}
    domain = {"domain": [0, 1.05 * largest / scale], "nice": False}

    def y(field: str) -> Spec:
        axis = {"title": label, "tickMinStep": 1 if scale == 1 else 0, "tickCount": 5}
        return {"field": field, "type": "quantitative", "stack": None, "axis": axis, "scale": domain}

    def scaled(numbers: Sequence[int], part: float) -> list[float]:
        # The value of the last point holds until the end.
        return [round(each / part, 6) for each in numbers]

    moments = [*(chart.x or sorted({at for line in chart.lines for at in line.x})), end]
    table: dict[str, list[float]] = {"x": scaled(moments, unit), "x2": scaled([*moments[1:], end], unit)}
    told: list[Spec] = [{"field": "x", "type": "quantitative", "format": ",.6~g", "title": axis["title"]}]
    calculated: list[Spec] = []
    layers: list[Spec] = []
    areas = {area.label: _COLOURS[area.colour] for area in chart.areas}
    for place, (area, top) in enumerate(zip(chart.areas, chart.tops, strict=True)):
        table[f"top{place}"] = scaled([*top, top[-1]], scale)
        below = f" - datum.top{place - 1}" if place else ""
        calculated.append({"calculate": f"datum.top{place}{below}", "as": f"area{place}"})
        told.append(_told(f"area{place}", area.label, label))
        colour = _COLOURS[area.colour]
        # A peak thinner than a pixel is seen by its outline. The lowest area comes last, and hides those behind it.
        mark = {"type": "area", "interpolate": "step-after", "stroke": colour, "strokeWidth": 0.6, **clip}
        # The other areas have the same scale.
        fill = {"datum": area.label, **({} if place else _legend(areas, "square"))}
        layers.insert(0, {"mark": mark, "encoding": {"x": x, "y": y(f"top{place}"), "fill": fill}})
    strokes = {line.label: _COLOURS[line.colour] for line in chart.lines}
    dashes = [_DASHES[line.dash] for line in chart.lines]
    if chart.marks:
        strokes[_OUT_OF_MEMORY], dashes = PALETTE["vermillion"], [*dashes, _DASHES["dashed"]]

    def stroke(entry: str) -> Spec:
        found: Spec = {"stroke": {"datum": entry}, "strokeDash": {"datum": entry}}
        if entry == next(iter(strokes)):
            found["stroke"] |= (legend := _legend(strokes, "stroke"))
            found["strokeDash"] |= {**legend, "scale": {"domain": list(strokes), "range": dashes}}
        return found

    for place, line in enumerate(chart.lines):
        held = (line.y[max(0, bisect.bisect_right(line.x, at) - 1)] if line.y else 0 for at in moments)
        table[f"line{place}"] = scaled([*held], scale)
        told.append(_told(f"line{place}", line.label, label))
        own = _columns(x=scaled([*line.x, end], unit), y=scaled([*line.y, *line.y[-1:]], scale))
        mark = {"type": "line", "interpolate": "step-after", "strokeWidth": 1.5, **clip}
        layers.append({**own, "mark": mark, "encoding": {"x": x, "y": y("y"), **stroke(line.label)}})
    if chart.marks:
        marked = {"values": [{"x": mark.x / unit, "told": mark.label} for mark in chart.marks]}
        shown = {"x": x, "tooltip": {"field": "told", "type": "nominal"}, **stroke(_OUT_OF_MEMORY)}
        layers.append({"data": marked, "mark": {"type": "rule", "strokeWidth": 1.2, **clip}, "encoding": shown})
    if use is Use.PAGE:
        # What is under the cursor: the numbers that hold until the next moment.
        moment = {"x": x, "x2": {"field": "x2"}, "tooltip": told}
        over = {"mark": {"type": "rect", "fill": "transparent", **clip}, "encoding": moment, "transform": calculated}
        layers.insert(len(chart.areas), {"name": f"panel{number}", **over})
    return _panel(chart.title, chart.note, _HEIGHT, layers) | _columns(**table)


def _told(field: str, label: str, unit: str) -> Spec:
    return {"field": field, "type": "quantitative", "format": ",.4~g", "title": f"{label.split(': peak')[0]} ({unit})"}


def _map(found: AddressMap, use: Use, number: int) -> Spec:
    clip = {"clip": True} if use is Use.PAGE else {}
    per_row = row_size(found.size)
    rows = -(-found.size // per_row)
    label, scale = byte_unit(max(1, per_row // 8))
    looks = {name: _COLOURS[colour] for name, colour, is_drawn in found.names if is_drawn}
    states = {block.state for block in found.blocks}
    looks |= {_WAITING: _COLOURS["waiting"]} if "waiting" in states else {}
    looks |= {found.free_label: _COLOURS["free"]} if "free" in states else {}
    pieces = [*_pieces(found, per_row, scale)]
    names = ("row", "left", "right", "pool", "size", "address", "requested", "stream", "stack")
    needed = names if use is Use.PAGE else names[:4]
    data = _columns(**{name: [piece[place] for piece in pieces] for place, name in enumerate(needed)})
    stacks = [{"number": place, "text": "\n".join(stack)} for place, stack in enumerate(found.stacks)]
    data["transform"].append({"calculate": f"datum.row + {_FILLED}", "as": "end"})
    if use is Use.PAGE:
        texts = {"data": {"values": stacks}, "key": "number", "fields": ["text"]}
        data["transform"].append({"lookup": "stack", "from": texts})
    # Every fourth row says where it begins, in a unit that is whole there.
    name, unit = byte_unit(4 * per_row)
    across = {
        "field": "left",
        "type": "quantitative",
        "scale": {"domain": [0, per_row / scale], "nice": False},
        "axis": {
            "title": f"{label}, each row goes on where the one above ends",
            "values": [part * per_row / 8 / scale for part in range(9)],
            "grid": False,
        },
    }
    begins = f"format(datum.value * {per_row} / {unit}, ',')"
    down = {
        "field": "row",
        "type": "quantitative",
        "scale": {"domain": [0, rows], "nice": False, "reverse": True},
        "axis": {"title": name, "values": [*range(0, rows + 1, 4)], "labelExpr": begins, "grid": False},
    }
    told = [{"field": each, "type": "nominal", "title": each} for each in names[3:8]]
    told.append({"field": "text", "type": "nominal", "title": "allocated by"})
    place = {"x": across, "x2": {"field": "right"}, "y": down, "y2": {"field": "end"}}
    blocks = {
        "name": f"panel{number}",
        **data,
        "mark": {"type": "rect", **clip},
        "encoding": {**place, "fill": {"field": "pool", "type": "nominal", **_legend(looks, "square")}},
    }
    if use is Use.PAGE:
        blocks["encoding"]["tooltip"] = told
    starts = [
        {"left": region.start % per_row / scale, "row": (row := region.start // per_row), "end": row + _FILLED}
        for region in found.regions
    ]
    begin = {
        "scale": {"domain": [found.region_label], "range": ["currentColor"]},
        "legend": {"symbolType": "M0,-0.8V0.8"},
    }
    shown = {"x": across, "y": down, "y2": {"field": "end"}, "stroke": {"datum": found.region_label, **begin}}
    regions = {"data": {"values": starts}, "mark": {"type": "rule", "strokeWidth": 1.3, **clip}, "encoding": shown}
    return _panel(found.title, found.note, rows * _ROW, [blocks, regions])


def _pieces(found: AddressMap, per_row: int, scale: int) -> Iterator[tuple[Any, ...]]:
    """Yield what is drawn of each block in each row: where, and what is told of it."""
    for block in found.blocks:
        region = found.regions[block.region]
        look = {"free": found.free_label, "waiting": _WAITING}.get(block.state, found.names[block.colour][0])
        several = f", {block.count} blocks, {size(block.live)} of it in use" if block.count > 1 else ""
        address = f"{region.address + block.start - region.start:#x}, in a {region.label} of {size(region.size)}"
        requested = size(block.requested) if block.requested else ""
        stream = "" if block.stream is None else hex(block.stream)
        about = look, size(block.size) + several, address, requested, stream, block.stack
        at, end = block.start, block.start + block.size
        while at < end:
            row = at // per_row
            right = min(end, (row + 1) * per_row)
            # A gap shows where blocks end, but for those that are hardly wider than it.
            gap = per_row * _GAP if right - at > 6 * per_row * _GAP else 0
            left = at - row * per_row
            yield (row, left / scale, (left + right - at - gap) / scale, *about)
            at = right
