"""The chart of memory over time: what a trace's program had, pool by pool, and what its allocator had reserved."""

import functools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpupool._plot.picture import Area, Chart, Dash, Line, Mark
from gpupool._plot.pools import Pools
from gpupool._plot.sampling import kept
from gpupool._report.units import size
from gpupool._traces.event import PoolId
from gpupool._traces.trace import FREE, Trace

# The most numbers that a chart is drawn from, all its areas together: with more a page would not stay small.
MOST = 40_000


@dataclass(frozen=True)
class Timeline:
    """The bytes that were live after each event."""

    trace: Trace
    total: "array[int]"
    by_pool: "list[array[int]]"
    """The bytes that were live in each of the pools that have a name in `pools`."""
    pools: Pools
    zero: int
    """The time at which the axis begins, by the file's clock."""

    @functools.cached_property
    def peak(self) -> int:
        """The event after which most was live."""
        return self.total.index(max(self.total))

    @property
    def end(self) -> int:
        """The end of the axis."""
        return self.x(self.trace.events - 1)

    def x(self, event: int) -> int:
        """Return the place of an event on the axis."""
        return self.trace.times[event] + (self.trace.start or 0) - self.zero if self.trace.times else event


def unpack(code: str, packed: bytes) -> "array[int]":
    """Return the numbers that are packed in a trace."""
    numbers: array[int] = array(code)
    numbers.frombytes(packed)
    return numbers


def _changes(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield each event's pool, as a number of `trace.pool_ids`, and by how many bytes it changes what is live."""
    nbytes: list[int] = []
    for slot, given in zip(unpack("I", trace.slots), unpack("Q", trace.sizes), strict=True):
        if slot & FREE:
            slot ^= FREE
            yield trace.pools[slot], -nbytes[slot]
        else:
            nbytes.append(given)
            yield trace.pools[slot], given


def peaks(trace: Trace) -> dict[PoolId | None, int]:
    """Return the most bytes that were live at a time in each pool."""
    now, most = [0] * len(trace.pool_ids), [0] * len(trace.pool_ids)
    for pool, change in _changes(trace):
        now[pool] += change
        if now[pool] > most[pool]:
            most[pool] = now[pool]
    return dict(zip(trace.pool_ids, most, strict=True))


def of(trace: Trace, pools: Pools, zero: int) -> Timeline:
    """Count what is live after each event; time begins at `zero`, by the file's clock."""
    places = [pools.place(pool) for pool in trace.pool_ids]
    level = [0] * len(pools.names)
    series: list[array[int]] = [array("q") for _ in level]
    total: array[int] = array("q")
    now = 0
    for pool, change in _changes(trace):
        level[places[pool]] += change
        now += change
        total.append(now)
        for numbers, nbytes in zip(series, level, strict=True):
            numbers.append(nbytes)
    return Timeline(trace, total, series, pools, zero)


def reserved_line(timeline: Timeline, label: str, colour: str, dash: Dash, changes: Sequence[tuple[int, int]]) -> Line:
    """Return a line of what an allocator had reserved: (event, bytes after it) at each change."""
    peak = max((nbytes for _, nbytes in changes), default=0)
    ratio = peak / timeline.trace.peak_live
    label = f"{label}: peak {size(peak)}, ratio {ratio:.3f}"
    return Line(label, colour, dash, [timeline.x(event) for event, _ in changes], [nbytes for _, nbytes in changes])


def changes_of_program(trace: Trace) -> list[tuple[int, int]]:
    """Return what the program's own allocator had reserved: (event, bytes after it) at each change."""
    changes: list[tuple[int, int]] = []
    for event, nbytes in enumerate(trace.reserved):
        if not changes or changes[-1][1] != nbytes:
            changes.append((event, nbytes))
    places = kept([array("Q", [nbytes for _, nbytes in changes])], MOST // 4)
    return [changes[place] for place in places]


def chart(timeline: Timeline, title: str, by_pool: bool, lines: list[Line], marks: list[Mark]) -> Chart:
    """Return a chart with live bytes as areas and reserved bytes as lines."""
    trace = timeline.trace
    if by_pool:
        layers = [(*name, numbers) for name, numbers in zip(timeline.pools.names, timeline.by_pool, strict=True)]
    else:
        layers = [("live", "sky", timeline.total)]
    # A pool of which only the segments are known has no area.
    layers = [layer for layer in layers if any(layer[2])]
    series = [timeline.total, *(numbers for _, _, numbers in layers if len(layers) > 1)]
    places = kept(series, MOST // (len(layers) + 1))
    note = ""
    if len(places) < trace.events:
        note = f"Drawn from {len(places):,} of {trace.events:,} events; no peak is lost."
    return Chart(
        title=title,
        unit="bytes",
        axis="time" if trace.times else "event",
        end=max(1, timeline.end),
        x=[timeline.x(place) for place in places],
        areas=[
            Area(f"{name}: peak {size(max(numbers))}", colour, [numbers[place] for place in places])
            for name, colour, numbers in layers
        ],
        lines=lines,
        marks=marks,
        note=note,
    )
