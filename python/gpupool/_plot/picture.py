"""The content of a picture: panels of numbers and names, which `spec` tells Vega-Lite of.

Bytes and microseconds are whole numbers. Colours are names of the Okabe-Ito palette, which colour-blind people tell
apart too.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

# The Okabe-Ito palette (https://jfly.uni-koeln.de/color/), and the colours of lines and free memory on a light ground.
PALETTE = {
    "sky": "#56b4e9",
    "orange": "#e69f00",
    "green": "#009e73",
    "purple": "#cc79a7",
    "yellow": "#f0e442",
    "vermillion": "#d55e00",
    "blue": "#0072b2",
    "grey": "#999999",
    "ink": "#1a1a1a",
    "free": "#e6e6e6",
}
# The most rows of an address map, from the first address to the last as one reads a page.
ROWS = 24
# The colours of pools, libraries and allocators, in this order; `grey` is for all the rest.
COLOURS = ("sky", "orange", "green", "purple", "yellow", "vermillion", "blue")
Dash: TypeAlias = Literal["solid", "dashed", "dotted", "dashdot", "longdash", "dashdotdot"]


@dataclass
class Area:
    """Bytes stacked on the areas before it, at the chart's `x`."""

    label: str
    colour: str
    y: list[int]


@dataclass
class Line:
    """Numbers that stay until the next one."""

    label: str
    colour: str
    dash: Dash
    x: list[int]
    y: list[int]


@dataclass
class Mark:
    """An event that is marked at its moment."""

    x: int
    label: str


@dataclass
class Chart:
    """A chart of numbers over time."""

    title: str
    unit: Literal["bytes", "handles"]
    axis: Literal["time", "event"]
    end: int
    """The end of the axis: microseconds, or the number of the last event, at least 1; the axis starts at 0."""
    x: list[int] = field(default_factory=list)
    areas: list[Area] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    note: str = ""
    link: str = ""
    """A text that charts with the same axis share."""

    @property
    def tops(self) -> list[list[int]]:
        """The upper edge of each area, which lies on those below it."""
        tops: list[list[int]] = []
        for area in self.areas:
            tops.append([below + value for below, value in zip(tops[-1], area.y, strict=True)] if tops else area.y)
        return tops


@dataclass
class Region:
    """A range of addresses without a gap; in the map regions follow each other."""

    start: int
    """The place in the map where the region starts."""
    address: int
    size: int
    label: str


State: TypeAlias = Literal["free", "live", "waiting"]


@dataclass
class Place:
    """A block, or several that are too small to be seen."""

    start: int
    size: int
    state: State
    colour: int
    """The place of the block's pool among the map's names."""
    region: int
    requested: int = 0
    stream: int | None = None
    stack: int = 0
    count: int = 1
    live: int = 0
    """The bytes of those blocks in use, if the place stands for several."""


@dataclass
class AddressMap:
    """A map of where the blocks are at a moment."""

    title: str
    size: int
    names: list[tuple[str, str, bool]]
    """The names and colours of pools, and whether they have a block here."""
    regions: list[Region]
    blocks: list[Place]
    stacks: list[tuple[str, ...]]
    free_label: str
    region_label: str
    note: str


@dataclass
class Picture:
    """All that is drawn of one or more files."""

    title: str
    subtitle: str
    facts: list[tuple[str, str]]
    panels: list[Chart | AddressMap]


def row_size(nbytes: int) -> int:
    """Return the bytes of a row of an address map, a power of two, so that rows begin at round addresses."""
    return 1 << max(0, -(-nbytes // ROWS) - 1).bit_length()
