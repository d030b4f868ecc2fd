"""The process that reads a file and draws it for :func:`gpupool.plot`: ``python -m gpupool._notebook.apart``.

It reads from standard input what to draw, and writes to standard output what came of it, both as pickles.
"""

import os
import pickle
import sys

import gpupool
from gpupool._plot import draw as _draw
from gpupool._traces import trace as _trace
from gpupool._traces.replay import HOST_MEMORY


def main() -> None:
    """Draw the picture that is asked for."""
    # Nothing has asked for a device yet: a picture needs no GPU, and shall take none of its memory.
    os.environ["GPUPOOL_RUNTIME"] = "host"
    os.environ.setdefault("GPUPOOL_HOST_MEMORY", str(HOST_MEMORY))
    # What else is printed here is no part of the answer.
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        pickle.dump(_drawn(*pickle.load(sys.stdin.buffer)), answer)


def _drawn(path: str, device: int | None, moment: str | None) -> tuple[str, object]:
    """Return ``picture`` and it, or the name of an error and what it says."""
    try:
        return "picture", _draw.draw(_trace.read_file(path, device), moment)
    except gpupool.Error as error:
        return type(error).__name__, str(error)


if __name__ == "__main__":
    main()
