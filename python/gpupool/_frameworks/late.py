"""Memory of frameworks' arrays that could not be freed when they died, as beside a capture that this would spoil."""

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from gpupool._native import on_oom

_Dead = TypeVar("_Dead")
_Owner = TypeVar("_Owner")


def free(dead: deque[_Dead], is_over: Callable[[_Dead], bool]) -> bool:
    """Free memory in the order in which it died, as long as each may be, and return whether any was.

    Args:
        dead: The memory, which frees itself with the last reference to it.
        is_over: Returns whether what is submitted from now on waits for all that used it.
    """
    freed = False
    # Another thread may empty the list meanwhile.
    with suppress(IndexError):
        for _ in range(len(dead)):
            each = dead.popleft()
            if not is_over(each):
                dead.appendleft(each)
                # Neither are the others.
                break
            freed = True
    return freed


def free_on_oom(owner: _Owner, ordinal: int, give: Callable[[_Owner], bool]) -> None:
    """Ask the owner of memory of a device to free what it can before a request there fails, as long as it lives."""
    this = weakref.ref(owner)

    def free_what_died(device: int, nbytes: int) -> bool:
        found = this()
        if found is None:
            callback.remove()
            return False
        return device == ordinal and give(found)

    callback: Any = on_oom(free_what_died)
