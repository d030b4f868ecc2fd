"""Bounds of what trace files may hold: more than programs do, and no more than readers have memory for.

A file that breaks one is damaged, or was made to break its reader.
"""

import os
import reprlib
import stat
from collections.abc import Sequence

from gpupool._report.units import size

# The most bytes of a request, an address and a stream.
MAX_SIZE = (1 << 64) - 1
# The most bytes that are live or reserved at a time.
MAX_TOTAL = (1 << 63) - 1
# The latest time, in microseconds; differences of two have 64 bits, with a sign.
MAX_TIME = (1 << 62) - 1
# The most characters of a line.
MAX_LINE = 1 << 16
# The most streams: a replay makes them all.
MAX_STREAMS = 1 << 14
# The most threads of a replay, or of a demo's wave.
MAX_THREADS = 1024
# The most pieces of work that a replay has under way.
MAX_LAG = 1_000_000
# The most frames of a call stack that are kept, the innermost, and the most characters of each name in them.
MAX_FRAMES = 24
MAX_NAME = 200
# What an event takes of memory, about, also to be drawn.
EVENT_MEMORY = 128

_LEAST_MEMORY, MOST_MEMORY = 64 << 20, 8 << 30
# A byte of a file that is packed well makes two hundred bytes of objects, and one of a file that is not packed eight.
_MEMORY_OF_A_PACKED_BYTE, _MEMORY_OF_A_BYTE = 512, 16


def memory_limit(descriptor: int) -> int:
    """Return the most bytes of memory that reading a file may take, for one that seems made to take all there is.

    A file that is as it should be and not packed takes less, whatever its size.
    """
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        return MOST_MEMORY
    return min(
        _LEAST_MEMORY + _MEMORY_OF_A_PACKED_BYTE * found.st_size, MOST_MEMORY + _MEMORY_OF_A_BYTE * found.st_size
    )


def too_much(limit: int) -> str:
    """Return what is said of a file that would take more memory."""
    return (
        f"reading it would take more than {size(limit)} of memory, too much for a file of its size; if it is as it "
        "should be, unpack it with gunzip, or save to a file what a pipe has, or record fewer events (max_entries)"
    )


def first_of(numbers: Sequence[int], separator: str = ", ") -> str:
    """Return the first numbers of many, as a text of one line."""
    shown = separator.join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxlist = self.maxtuple = self.maxdict = 3


told = _Short().repr
"""Return a value of a file as an error tells it: the start of it, for the whole may have no end."""


def name(value: object) -> str:
    """Return a name of a file as text: whole if it is not long, and nothing for a value that is no text or number."""
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        return ""
    return value if len(value) <= MAX_NAME else f"{value[: MAX_NAME - 1]}…"
