"""The first handle of a process can be asked for while a stream is captured, and the capture survives."""

import pytest
from gpu_helpers import POOLS, pool_or_skip, run_program


@pytest.mark.parametrize("what", ["here", "thread", "default stream", "warm", "trim"])
@pytest.mark.parametrize("name", POOLS)
def test_global_capture_survives(name, what):
    pool_or_skip(name)
    run_program("captures/handles.py", "the_first_is_asked_for", name, "Global", what)


@pytest.mark.parametrize("mode", ["ThreadLocal", "Relaxed"])
@pytest.mark.parametrize("what", ["here", "thread"])
def test_other_captures_survive(mode, what):
    run_program("captures/handles.py", "the_first_is_asked_for", "cublas", mode, what)


def test_trim_spares_handles_while_a_capture_is_visible():
    run_program("captures/handles.py", "they_are_trimmed")
