"""Forked children: how they ended, and what they must not be allowed."""

import os
import traceback
from collections.abc import Callable

import gpupool
from errors import assert_says, raised


def exit_code_of(child: int) -> int:
    """Wait for a child's end."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_child(work: Callable[[], object]) -> None:
    """Do work in a forked child, which must end well."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert exit_code_of(child) == 0, "a forked child failed"


def assert_refused(*calls: Callable[[], object]) -> None:
    """Check in a forked child that each of the calls fails, and says what can be done instead."""
    for call in calls:
        assert_says(raised(gpupool.Forked, call), "spawn")
