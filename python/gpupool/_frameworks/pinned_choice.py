"""Whether a framework that asks at every request takes its pinned memory from gpupool: in all threads, or in some."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Blocks(threading.local):
    """How many blocks the thread is in."""

    count = 0


class PinnedChoice:
    """The choice of one framework."""

    def __init__(self) -> None:
        self.for_all = False
        self._blocks = _Blocks()

    def is_made(self) -> bool:
        """Return whether the calling thread's pinned memory comes from gpupool."""
        return self.for_all or self._blocks.count > 0

    @contextmanager
    def in_block(self) -> Iterator[None]:
        """Make the choice for this thread, for a ``with`` block."""
        self._blocks.count += 1
        try:
            yield
        finally:
            self._blocks.count -= 1


numba = PinnedChoice()
