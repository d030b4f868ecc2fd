"""Forked children: how they ended, and what they must not be allowed."""

import os
from collections.abc import Callable

import gpupool
from errors import assert_says, raised


def exit_code_of(child: int) -> int:
    """Wait for a child's end."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def assert_refused(*calls: Callable[[], object]) -> None:
    """In a forked child: each of the calls must fail, and say what can be done instead."""
    for call in calls:
        assert_says(raised(gpupool.Forked, call), "spawn")
