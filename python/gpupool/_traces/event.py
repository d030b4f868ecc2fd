"""What the readers of traces have in common: an event, a call stack told once, and the error."""

import io
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import gpupool

MAX_SIZE = (1 << 64) - 1
# Frames of a call stack that are kept, from where the memory was asked for outwards.
MAX_FRAMES = 24

Reader: TypeAlias = "io.BufferedReader[Any]"
PoolId: TypeAlias = tuple[int, int]
Watch: TypeAlias = Callable[[float], object]
"""Is called with the part that is done, 0 to 1."""


class TraceError(gpupool.Error):
    """A file that cannot be read as a trace."""


class Event(NamedTuple):
    """An allocation or a free."""

    allocates: bool
    block: str | int
    """What tells the block from other live ones: its address, as a number or as the file has it."""
    size: int
    stream: int
    time: int | None = None
    """Microseconds."""
    pool: PoolId | None = None
    stack: int = 0
    """The number of the call stack in the file's `Stacks`."""
    reserved: int | None = None
    """The bytes of the device that the program's allocator has after the event."""


def pointer(text: str) -> int:
    """A pointer, or a stream, as logs write them: hexadecimal after 0x, else decimal. Raises ValueError for others."""
    return int(text, 16 if text[:2].lower() == "0x" else 10)


class Stacks:
    """Call stacks by number; 0 is the empty one."""

    def __init__(self) -> None:
        self.table: list[tuple[str, ...]] = [()]
        self._numbers: dict[tuple[str, ...], int] = {(): 0}
        # A snapshot has one list object for all events of a call stack. It is kept, so that its id stays its own.
        self._seen: dict[int, tuple[object, int]] = {}

    def number(self, frames: object) -> int:
        """The number of a snapshot's frames; what is no frame is left out."""
        if not isinstance(frames, list) or not frames:
            return 0
        seen = self._seen.get(id(frames))
        if seen is not None:
            return seen[1]
        stack = tuple(
            f"{frame.get('name')}  {frame.get('filename')}:{frame.get('line')}"
            for frame in frames[:MAX_FRAMES]
            if isinstance(frame, dict)
        )
        number = self._numbers.setdefault(stack, len(self.table))
        if number == len(self.table):
            self.table.append(stack)
        self._seen[id(frames)] = frames, number
        return number
