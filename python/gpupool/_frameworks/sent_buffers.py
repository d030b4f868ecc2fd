"""The question whether a buffer is being pickled by ``multiprocessing``, which sends it, or by anything else."""

import sys

# The module whose pickler sends objects between processes: queues, pipes, arguments of processes, also PyTorch's.
SENDER = "multiprocessing.reduction"


def is_sent() -> bool:
    """Return True if the Python code that is pickling is ``multiprocessing``'s.

    Its pickler could be told of a class only by an import of ``multiprocessing``, which programs that send nothing
    would pay for. The pickler itself is C, so the innermost Python code that the caller, who is no Python code either,
    was called from is what started it.
    """
    frame = sys._getframe(1)
    return frame.f_globals.get("__name__") == SENDER
