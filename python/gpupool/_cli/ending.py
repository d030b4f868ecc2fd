"""The end of a command: its exit code and, if it failed for whatever reason, one line that says why."""

import sys
import traceback
from collections.abc import Callable

import gpupool
from gpupool._cli import output as _output
from gpupool._report.printable import printable

FAILED = 1
# The exit code that shells have for a program that Ctrl-C ended.
INTERRUPTED = 130


def end(command: Callable[[], int]) -> int:
    """Run a command to its end and return its exit code. Nothing but argparse's ``SystemExit`` is raised."""
    try:
        try:
            return command()
        finally:
            _output.flush()
    except SystemExit:
        raise
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _output.discard(sys.stdout)
    except BaseException as error:
        if isinstance(error, _output.OutputError):
            _output.discard(sys.stdout)
        _output.complain(f"gpupool: {_reason(error)}")
    return FAILED


def _reason(error: BaseException) -> str:
    if isinstance(error, gpupool.LibraryNotFound):
        # It has a line for each place where the library was looked for.
        return "\n".join(map(printable, str(error).split("\n")))
    if isinstance(error, gpupool.Error):
        return printable(str(error))
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        return printable(f"{error.filename}: {what}" if error.filename else what)
    if isinstance(error, MemoryError):
        return "out of memory: this process can have no more; free some, or raise its limit (ulimit -v)"
    frames = traceback.extract_tb(error.__traceback__)
    place = f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return printable(f"a bug in gpupool, please report it: {type(error).__name__}: {str(error)[:1000]}{place}")
