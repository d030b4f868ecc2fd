"""A picture with few numbers, for notebooks, which are kept with what they show: no peak is lost."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import groupby

from gpupool._plot.address_map import merge
from gpupool._plot.picture import AddressMap, Chart, Picture

# The parts of an axis, each about three pixels wide, of which few numbers are kept, and the most blocks of a map.
_PARTS, _MOST_BLOCKS = 300, 500


def thin(picture: Picture) -> Picture:
    """Return the picture with fewer numbers, where it has many."""
    return replace(picture, panels=[_chart(each) if isinstance(each, Chart) else _map(each) for each in picture.panels])


def _chart(chart: Chart) -> Chart:
    places = _kept(chart.x, chart.tops, chart.end)
    areas = [replace(area, y=_at(places, area.y)) for area in chart.areas]
    lines = []
    for line in chart.lines:
        own = _kept(line.x, [line.y], chart.end)
        lines.append(replace(line, x=_at(own, line.x), y=_at(own, line.y)))
    # Where a chart of bytes has a note, it is of more numbers than are left.
    is_thinner = chart.unit == "bytes" and len(places) < len(chart.x)
    note = "Drawn from fewer numbers than there are; no peak is lost." if is_thinner else chart.note
    return replace(chart, x=_at(places, chart.x), areas=areas, lines=lines, note=note)


def _kept(x: Sequence[int], series: Sequence[Sequence[int]], end: int) -> list[int]:
    """Return the places to keep: of each part of the axis the last, which may hold for long, the least and the most."""
    kept: set[int] = set()
    for _, part in groupby(range(len(x)), key=lambda place: x[place] * _PARTS // max(end, 1)):
        places = list(part)
        kept |= {places[0], places[-1]}
        for numbers in series:
            kept |= {max(places, key=numbers.__getitem__), min(places, key=numbers.__getitem__)}
    return sorted(kept)


def _at(places: Sequence[int], numbers: Sequence[int]) -> list[int]:
    return [numbers[place] for place in places]


def _map(found: AddressMap) -> AddressMap:
    return replace(found, blocks=merge([copy(block) for block in found.blocks], found.size, _MOST_BLOCKS))
