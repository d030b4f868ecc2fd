"""Tokens, as one for each GiB of a device, that tests in several processes take turns with.

A token is a file that is locked as long as it is in use, so that the end of a process gives its tokens back
however it ends. Who wants some waits in a queue, which is one more locked file, and at its head for tokens that others
give back: all in their turn, those that want many too, and nobody holds tokens while it waits for its turn.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

GIB = 1 << 30
# Gibibytes that a process which runs tests keeps all the time: contexts, kernels, and what libraries allocate once.
OF_A_PROCESS = 2
# Those of a test that does not say what it needs, with the context of a program that it runs.
USUAL = 2
# Seconds between two looks for tokens that were given back.
PAUSE = 0.01


def count_tokens(total_bytes: int, processes: int) -> int:
    """Return how many tokens there are of a device's memory beside what so many processes keep."""
    return max(total_bytes // GIB - OF_A_PROCESS * processes, 1)


def needed(test: pytest.Item) -> int:
    """Return the gibibytes that a test says it needs."""
    marker = test.get_closest_marker("device_memory")
    return marker.kwargs["gib"] if marker else USUAL


class Tokens:
    """So many tokens, whose files are in a folder that all the processes know."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        folder.mkdir(parents=True, exist_ok=True)

    def _open(self, name: str) -> int:
        return os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        file = self._open(name)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            _unlock(file)

    def _try(self, number: int) -> int | None:
        """Return the file of a token that nobody holds, locked."""
        file = self._open(f"token-{number}")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        return file

    def _take(self, held: dict[int, int], wanted: int) -> None:
        """Take tokens until there are so many; the caller is at the head of the queue."""
        while True:
            for number in range(self._count):
                if len(held) == wanted:
                    return
                if number not in held and (file := self._try(number)) is not None:
                    held[number] = file
            # Nothing tells of a lock that goes with its process, so it is looked for again and again; by one process.
            time.sleep(PAUSE)

    @contextlib.contextmanager
    def taken(self, wanted: int) -> Iterator[int]:
        """Have so many tokens meanwhile, or all where there are fewer; wait until there are."""
        held: dict[int, int] = {}
        try:
            with self._lock("queue"):
                self._take(held, min(wanted, self._count))
            yield len(held)
        finally:
            for file in held.values():
                _unlock(file)


def _unlock(file: int) -> None:
    """Unlock a file and close it; closed alone, it would stay locked by a child that was forked meanwhile."""
    fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)
