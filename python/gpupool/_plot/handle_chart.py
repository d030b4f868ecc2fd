"""The chart of handles over time: how many of each library exist, and how many of them are in use."""

from array import array
from collections.abc import Iterable

from gpupool._plot.picture import COLOURS, Chart, Dash, Line
from gpupool._plot.sampling import kept
from gpupool._traces.snapshot import HandleEvent

# The most numbers that each line is drawn from.
MOST = 8_000
# The most libraries that are drawn, with two lines each.
MOST_LIBRARIES = 20
# The actions by which a handle that was not seen before is known to have existed, and to have been in use.
_WAS_THERE = ("take", "give_back", "discard", "destroy")
_WAS_IN_USE = ("give_back", "discard")


def chart(events: Iterable[HandleEvent], zero: int, end: int) -> Chart | None:
    """Return the chart of a device's handles; None without events.

    Time begins at `zero`, by the events' clock.
    """
    by_library: dict[str, list[HandleEvent]] = {}
    for event in events:
        by_library.setdefault(event.library, []).append(event)
    if not by_library:
        return None
    styles: list[tuple[str, Dash]] = [("created", "dotted"), ("in use", "solid")]
    lines: list[Line] = []
    drawn = sorted(by_library, key=lambda library: (-len(by_library[library]), library))[:MOST_LIBRARIES]
    left_out = len(by_library) - len(drawn)
    note = f"{left_out} more {'library' if left_out == 1 else 'libraries'} with fewer events left out." * (left_out > 0)
    for number, library in enumerate(sorted(drawn)):
        found = by_library[library]
        colour = COLOURS[number % len(COLOURS)]
        times, there, in_use = _count(found)
        for (what, dash), numbers in zip(styles, (there, in_use), strict=True):
            places = kept([numbers], MOST)
            # The first number counts the handles from before the first event.
            x = [0 if place == 0 else max(0, times[place - 1] - zero) for place in places]
            y = [numbers[place] for place in places]
            lines.append(Line(f"{library} {what}: peak {max(numbers)}", colour, dash, x, y))
    return Chart("Handles over time", "handles", "time", max(1, end), lines=lines, note=note)


def _count(events: list[HandleEvent]) -> "tuple[list[int], array[int], array[int]]":
    """Return the events' times, and before the first and after each event the handles that exist and those in use."""
    there: set[int] = set()
    in_use: set[int] = set()
    known: set[int] = set()
    for event in events:
        if event.handle not in known:
            known.add(event.handle)
            if event.action in _WAS_THERE:
                there.add(event.handle)
            if event.action in _WAS_IN_USE:
                in_use.add(event.handle)
    counts, used = array("Q", [len(there)]), array("Q", [len(in_use)])
    for event in events:
        if event.action == "create":
            there.add(event.handle)
        elif event.action == "take":
            in_use.add(event.handle)
        else:
            in_use.discard(event.handle)
        if event.action in ("destroy", "discard"):
            there.discard(event.handle)
        counts.append(len(there))
        used.append(len(in_use))
    return [event.time for event in events], counts, used
