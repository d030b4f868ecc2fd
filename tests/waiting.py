"""Waiting for what is about to happen, never for a time."""

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

# How many times as long as usual things may take: under compute-sanitizer everything is slow.
PATIENCE = float(os.environ.get("GPUPOOL_TESTS_PATIENCE", "1"))
# What takes longer does not come any more; in seconds, less than a program may take.
LONG = 50 * PATIENCE

Result = TypeVar("Result")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds. `what` says which it is, for the error that comes if it never does."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        os.sched_yield()


def wait_for(event: threading.Event, what: str) -> None:
    """Wait until another thread has set the event, which says that what is told has come to be."""
    assert event.wait(LONG), f"waited in vain until {what}"


def wait_for_end(*threads: threading.Thread) -> None:
    """Wait until threads are gone from the system, with what their end gives back; Python waits for less."""
    for thread in threads:
        thread.join()
    for thread in threads:
        task = f"/proc/self/task/{thread.native_id}"
        wait_until(lambda task=task: not os.path.exists(task), f"the system knows nothing of {thread.name} any more")


def in_thread(function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function in a thread of its own, and return the result once the thread is gone."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)))
    thread.start()
    wait_for_end(thread)
    return results[0]
