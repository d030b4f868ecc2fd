"""Standard output and standard error of the commands, which may be closed, full, or unable to show a character."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

import gpupool


class OutputError(gpupool.Error):
    """Standard output cannot be written."""


def say(text: str) -> None:
    """Print a line on standard output; what it cannot encode is shown as escapes.

    Raises:
        OutputError: It cannot be written.
        BrokenPipeError: The reader of a pipe has closed it.
    """
    if sys.stdout is None:
        return
    with _told():
        try:
            print(text, flush=True)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding or "ascii"
            print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def flush() -> None:
    """Write what others have printed, as `say` does."""
    if sys.stdout is not None:
        with _told():
            sys.stdout.flush()


def flush_quietly() -> None:
    """Write what others have printed, if that can be."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()


def complain(line: str) -> None:
    """Print a line on standard error, if there is any."""
    if sys.stderr is not None:
        try:
            print(line, file=sys.stderr, flush=True)
        except (OSError, ValueError):
            discard(sys.stderr)


def discard(stream: TextIO | None) -> None:
    """Send what is still to be written nowhere, or the interpreter complains once more at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        finally:
            os.close(nowhere)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"standard output cannot be written: {error.strerror or error}; make room there, or send it elsewhere"
        ) from error
