"""The process that reads a file and draws it for :func:`gpupool.plot`: ``python -m gpupool._notebook.apart``.

It reads from standard input what to draw, and writes to standard output what came of it, both as pickles.
"""

import os
import pickle
import sys

from gpupool._traces.replay import HOST_MEMORY


def main() -> None:
    """Draw the picture that is asked for."""
    # Before anything asks for a device: a picture needs no GPU, and shall take none of its memory.
    os.environ["GPUPOOL_RUNTIME"] = "host"
    os.environ.setdefault("GPUPOOL_HOST_MEMORY", str(HOST_MEMORY))
    import gpupool
    from gpupool._plot import draw
    from gpupool._traces import trace

    path, device, moment = pickle.load(sys.stdin.buffer)
    try:
        told: tuple[str, object] = ("picture", draw.draw(trace.read_file(path, device), moment))
    except gpupool.Error as error:
        told = (type(error).__name__, str(error))
    pickle.dump(told, sys.stdout.buffer)


if __name__ == "__main__":
    main()
