"""torch.multiprocessing with gpupool as PyTorch's allocator, by real processes. Each test has a process of its own."""

import pytest
from gpu_helpers import PROGRAMS, import_or_skip, run_loud_program, run_prepared_program
from processes import functions_of

pytestmark = pytest.mark.device_memory(gib=6)


@pytest.fixture
def torch():
    """Return PyTorch, or skip."""
    torch = import_or_skip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs PyTorch for CUDA")
    return torch


@pytest.mark.thorough
@pytest.mark.parametrize("what", functions_of(PROGRAMS / "pytorch/sharing.py", "go_to_another_device"))
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
