"""torch.multiprocessing with gpupool as PyTorch's allocator, by real processes. Each test has a process of its own."""

import pytest
from gpu_helpers import import_or_skip, run_loud_program, run_prepared_program

pytestmark = pytest.mark.device_memory(gib=6)


@pytest.fixture
def torch():
    """Return PyTorch, or skip."""
    torch = import_or_skip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs PyTorch for CUDA")
    return torch


@pytest.mark.thorough
@pytest.mark.parametrize(
    "what",
    [
        "go_through_a_queue_and_back",
        "go_many_at_once",
        "are_views_of_one_storage",
        "are_parameters_and_modules",
        "come_with_events",
        "wait_for_the_senders_stream",
        "stay_until_they_are_let_go",
        "outlive_a_killed_receiver",
        "are_used_on_other_streams",
        "are_not_sent_on",
        "of_before_go_as_pytorchs_own",
    ],
)
@pytest.mark.parametrize("receiver", ["enabled", "plain"])
def test_shared_tensors(torch, what, receiver):
    run_prepared_program("pytorch/sharing.py", what, receiver, is_loud=True)


@pytest.mark.thorough
@pytest.mark.parametrize("conf", ["backend:native", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_shared_tensors_reach_a_process_that_knows_nothing_of_gpupool(torch, conf):
    run_loud_program("pytorch/sent_to_strangers.py", conf)


def test_shared_tensors_of_another_device(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    run_loud_program("pytorch/sharing.py", "go_to_another_device", "enabled")
