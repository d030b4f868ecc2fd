"""Captures of other libraries: gpupool spoils none, and nothing that it is asked for fails beside them."""

import pytest
from gpu_helpers import import_or_skip, run_prepared_program, run_program

TORCH_MODES = ["global", "thread_local", "relaxed"]


@pytest.mark.parametrize("by", ["here", "thread"])
@pytest.mark.parametrize("kind", ["blocking", "non_blocking", "per_thread"])
@pytest.mark.parametrize("mode", ["Global", "ThreadLocal", "Relaxed"])
def test_a_capture_of_cupys(mode, kind, by):
    run_program("captures/of_cupy.py", mode, kind, by)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["blocking", "non_blocking"])
@pytest.mark.parametrize("mode", TORCH_MODES)
@pytest.mark.parametrize("way", ["context", "raw"])
def test_a_capture_of_pytorchs_on_its_own_memory(way, mode, kind):
    import_or_skip("torch")
    run_prepared_program("captures/of_pytorch.py", way, mode, kind)


@pytest.mark.thorough
# In the global mode the end of a graph on another thread spoils it on PyTorch's own allocator, too.
@pytest.mark.parametrize("kind", ["own", "external"])
@pytest.mark.parametrize("mode", TORCH_MODES[1:])
def test_a_capture_of_pytorchs_that_begins_in_place(mode, kind):
    import_or_skip("torch")
    run_prepared_program("pytorch/in_place_captures.py", mode, kind)
