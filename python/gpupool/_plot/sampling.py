"""A selection of few numbers of long series, without losing a peak."""

from array import array
from collections.abc import Sequence


def kept(series: "Sequence[array[int]]", most: int) -> list[int]:
    """Return the places of the numbers to draw, in order, at most about so many.

    They are all, or of each of many equal parts the last, for it may hold for long, and where each series has its least
    and its most.
    """
    length = len(series[0]) if series else 0
    if length <= most:
        return list(range(length))
    width = -(-length // max(1, most // (2 * len(series) + 1)))
    places = {0}
    for start in range(0, length, width):
        places.add(min(start + width, length) - 1)
        for numbers in series:
            part = numbers[start : start + width]
            places.add(start + part.index(max(part)))
            places.add(start + part.index(min(part)))
    return sorted(places)
