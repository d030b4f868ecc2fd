"""The trace files that commands are given: their names, and what is said of those that are not whole."""

from gpupool._cli.output import complain
from gpupool._report.printable import printable
from gpupool._traces.trace import Trace


def trace_path(argument: str) -> str:
    """Return the path of a file that is given as an argument: ``-`` is standard input."""
    return "/dev/stdin" if argument == "-" else argument


def warn_of_cut(path: str, trace: Trace) -> None:
    """Say on standard error if only the beginning of a file is there."""
    if trace.cut is not None:
        complain(f"gpupool: {printable(path)}: warning: {trace.cut}")
