"""How far work is that takes more than a moment: a line on standard error for a person, and nothing elsewhere."""

import os
import shutil
import sys
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar

# The seconds before a line is shown, and those between two of its changes.
DELAY = 2.0
PAUSE = 0.1
# The seconds between two changes of a line that only tells the time.
TICK = 0.5

_MOST_BAR = 40
_LEAST_BAR = 4
# Before so much is done, what is left would be a guess.
_LEAST_PART = 0.02


@dataclass(frozen=True)
class Turn:
    """The place of a piece of work among several, and when the first of them began, from which the delay counts."""

    number: int = 1
    total: int = 1
    start: float = field(default_factory=lambda: time.monotonic())


class Progress:
    """A line with a label, a bar, the time taken and the time left, called with the part that is done, 0 to 1.

    >>> with Progress("reading") as progress:
    ...     progress(0.5)

    Work that cannot tell its part has `counts=False`: a thread shows the time that it has taken. The line does not show
    if standard error is no terminal, or one that cannot erase a line, nor in the first two seconds. At the end it is
    gone, also after Ctrl-C. Inside another one it takes the other's place.
    """

    _entered: ClassVar[list["Progress"]] = []

    def __init__(self, label: str, turn: Turn | None = None, *, counts: bool = True) -> None:
        self._start = time.monotonic()
        turn = turn or Turn(start=self._start)
        self._label = label if turn.total == 1 else f"{turn.number} of {turn.total}, {label}"
        self._visible_from = turn.start + DELAY
        self._latest = float("-inf")
        self._is_shown = False
        self._wanted = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._ended = threading.Event()
        self._clock = None if counts or not self._wanted else threading.Thread(target=self._tell_time, daemon=True)

    def __enter__(self) -> "Progress":
        self._entered.append(self)
        if self._clock is not None:
            self._clock.start()
        return self

    def __call__(self, part: float) -> None:
        self._change(part)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.remove(self)
        self._ended.set()
        if self._clock is not None:
            self._clock.join()
        if self._is_shown:
            self._write("\r\x1b[K")

    def _tell_time(self) -> None:
        while not self._ended.wait(TICK):
            self._change(None)

    def _change(self, part: float | None) -> None:
        now = time.monotonic()
        if not self._wanted or now < self._visible_from or now - self._latest < PAUSE or self._entered[-1:] != [self]:
            return
        self._latest = now
        self._is_shown = True
        # Without the last column, where some terminals wrap.
        self._write(f"\r{line(self._label, part, now - self._start, _columns() - 1)}\x1b[K")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            # The terminal is gone; the work is not.
            self._wanted = False


def line(label: str, part: float | None, seconds: float, width: int) -> str:
    """Return a line of at most `width` characters: the bar gives way first, then the times, then the label's end."""
    if part is None:
        tail = f" {_duration(seconds)}"
        return _cut(label, width - len(tail)) + tail if width > 2 * len(tail) else _cut(label, width)
    percentage = f"] {part:4.0%}"
    left = f", {_duration(seconds / part * (1 - part))} left" if part >= _LEAST_PART else ""
    tail, bar = percentage, 0
    for tail in (f"{percentage} {_duration(seconds)}{left}", percentage):
        bar = min(_MOST_BAR, width - len(label) - len(" [") - len(tail))
        if bar >= _LEAST_BAR:
            break
    bar = max(_LEAST_BAR, bar)
    done = round(bar * part)
    return f"{_cut(label, width - len(' [') - bar - len(tail))} [{'#' * done}{' ' * (bar - done)}{tail}"[
        : max(0, width)
    ]


def _cut(label: str, width: int) -> str:
    return label if len(label) <= width else label[: max(0, width - 3)] + "..."[: max(0, width)]


def _duration(seconds: float) -> str:
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def _columns() -> int:
    try:
        # Of this terminal: standard output may be a file.
        return os.get_terminal_size(sys.stderr.fileno()).columns or shutil.get_terminal_size().columns
    except (OSError, ValueError, AttributeError):
        return shutil.get_terminal_size().columns
