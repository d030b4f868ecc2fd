"""A progress bar on standard error, for work that takes more than a moment in front of a person."""

import os
import shutil
import sys
import time
from types import TracebackType

# The seconds before a bar is shown, and those between two of its changes.
DELAY = 1.0
PAUSE = 0.1


class Progress:
    """A progress bar, called with the part that is done, 0 to 1.

    >>> with Progress("reading") as progress:
    ...     progress(0.5)

    It does not show if standard error is no terminal, nor in the first second. At the end the bar is gone, also after
    Ctrl-C.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._start = self._latest = time.monotonic()
        self._is_shown = False
        self._wanted = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> "Progress":
        return self

    def __call__(self, part: float) -> None:
        now = time.monotonic()
        if not self._wanted or now - self._start < DELAY or now - self._latest < PAUSE:
            return
        self._latest = now
        self._is_shown = True
        columns = shutil.get_terminal_size().columns
        # The label, the frame, the percentage, and the last column, where some terminals wrap.
        width = max(4, min(40, columns - len(self._label) - 10))
        done = round(width * part)
        line = f"{self._label} [{'#' * done}{' ' * (width - done)}] {part:4.0%}"
        self._show(f"\r{line[: columns - 1]}\x1b[K")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._show("\r\x1b[K")

    def _show(self, line: str) -> None:
        try:
            sys.stderr.write(line)
            sys.stderr.flush()
        except OSError:
            # The terminal is gone; the work is not.
            self._wanted = False
