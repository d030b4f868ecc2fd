"""Processes end cleanly with live handles, and forked children are told what is wrong."""

import pytest
from gpu_helpers import import_or_skip, run_program

HOLDERS = [
    "of_the_main_thread",
    "of_threads_that_end_after_the_main_thread",
    "of_threads_that_never_end",
    "of_threads_at_work",
    "taken_at_exit",
    "that_are_idle",
    "of_a_pool_of_one_s_own",
]


@pytest.mark.parametrize("handles", HOLDERS)
def test_exits_cleanly(handles):
    run_program("ends/with_handles.py", handles)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "order", ["gpupool-torch-cupy", "gpupool-cupy-torch", "torch-cupy-gpupool", "cupy-torch-gpupool"]
)
def test_exits_cleanly_beside_other_frameworks(order):
    import_or_skip("torch")
    run_program("ends/beside_frameworks.py", order)


@pytest.mark.parametrize("forks", ["of_the_main_thread", "of_a_thread"])
def test_forked_children_are_told(forks):
    run_program("ends/of_forked_children.py", forks)


def test_a_child_forked_before_the_first_use_works():
    run_program("ends/of_an_early_fork.py")
