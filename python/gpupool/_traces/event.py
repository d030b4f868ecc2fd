"""The parts that the readers of trace files share: an event, a table of call stacks, and the error."""

import io
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import gpupool
from gpupool._traces import bounds as _bounds

Reader: TypeAlias = "io.BufferedReader[Any]"
PoolId: TypeAlias = tuple[int, int]
Watch: TypeAlias = Callable[[float], object]
"""A function that is called with the part that is done, 0 to 1."""


class TraceError(gpupool.Error):
    """A file cannot be read as a trace file."""


class Event(NamedTuple):
    """An allocation or a free."""

    allocates: bool
    block: str | int
    """The address of the block, as a number or as the file has it, which tells it from other live ones."""
    size: int
    stream: int
    place: int
    """The number of the line or of the entry that tells of it."""
    time: int | None = None
    """The time in microseconds."""
    pool: PoolId | None = None
    stack: int = 0
    """The number of the call stack in the file's `Stacks`."""
    reserved: int | None = None
    """The bytes of the device that the program's allocator has after the event."""


def pointer(text: str) -> int:
    """Return the number of a pointer or a stream that a log has written: hexadecimal after 0x, else decimal.

    Raises:
        ValueError: The text is no such number.
    """
    return int(text, 16 if text[:2].lower() == "0x" else 10)


class Stacks:
    """A table of call stacks by number; 0 is the empty one."""

    def __init__(self) -> None:
        self.table: list[tuple[str, ...]] = [()]
        self._numbers: dict[tuple[str, ...], int] = {(): 0}
        # A snapshot has one list object for all events of a call stack. It is kept, so that its id stays its own.
        self._seen: dict[int, tuple[object, int]] = {}
        # Frames are shared too.
        self._texts: dict[int, tuple[object, str]] = {}

    def number(self, frames: object) -> int:
        """Return the number of a snapshot's frames. Entries that are no frames are left out."""
        if not isinstance(frames, list) or not frames:
            return 0
        seen = self._seen.get(id(frames))
        if seen is not None:
            return seen[1]
        stack = tuple(self._text(frame) for frame in frames[: _bounds.MAX_FRAMES] if isinstance(frame, dict))
        number = self._numbers.setdefault(stack, len(self.table))
        if number == len(self.table):
            self.table.append(stack)
        self._seen[id(frames)] = frames, number
        return number

    def _text(self, frame: dict[str, object]) -> str:
        seen = self._texts.get(id(frame))
        if seen is not None:
            return seen[1]
        name, file, line = (_bounds.name(frame.get(key)) for key in ("name", "filename", "line"))
        self._texts[id(frame)] = frame, f"{name}  {file}:{line}"
        return self._texts[id(frame)][1]
