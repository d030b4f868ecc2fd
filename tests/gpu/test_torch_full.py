"""gpupool as PyTorch's allocator, enabled at any time: nothing that PyTorch does with memory is lost.

Each test has a process of its own, since an allocator is a process's. That all calls do what PyTorch's own allocator
does, with the same numbers, is in tests/python/test_torch_allocator.py.
"""

import pytest
from gpu_helpers import PROGRAMS, import_or_skip, run_loud_program, run_prepared_program, run_program
from processes import functions_of

pytestmark = pytest.mark.device_memory(gib=3)

# What asks for all of the device, and what is a soak.
MARKS = {
    "ask_gpupools_callbacks": pytest.mark.alone,
    "are_right_while_it_is_toggled": pytest.mark.thorough,
}
# Whose processes write to stderr, since Python warns of forks with threads.
LOUD = {"limits": ["are_not_touched_by_workers"], "pinned": ["is_a_data_loaders_of_workers"]}
CASES = [
    pytest.param(program, what, marks=MARKS.get(what, ()))
    for program in ("memory_statistics", "history", "pools", "captured", "lifetimes", "pinned", "limits")
    for what in functions_of(PROGRAMS / f"pytorch/{program}.py", *LOUD.get(program, ()))
]


@pytest.fixture(autouse=True)
def torch():
    """Return PyTorch, or skip."""
    torch = import_or_skip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs PyTorch for CUDA")
    return torch


@pytest.mark.parametrize(("program", "what"), CASES)
def test_with_gpupool_enabled(program, what):
    print(run_prepared_program(f"pytorch/{program}.py", what))


def test_tensors_are_not_touched_by_workers():
    print(run_prepared_program("pytorch/limits.py", "are_not_touched_by_workers", is_loud=True))


def test_pinned_memory_of_a_data_loader_with_workers():
    print(run_loud_program("pytorch/pinned.py", "is_a_data_loaders_of_workers"))


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["train", "infer", "keeps_outputs_that_live_on", "outlives_disable"])
@pytest.mark.device_memory(gib=4)
def test_graph_trees(what):
    print(run_loud_program("pytorch/recompiled.py", what))


@pytest.mark.thorough
def test_the_library_is_compiled_at_first_use(tmp_path):
    print(run_program("pytorch/compiled.py", XDG_CACHE_HOME=str(tmp_path)))


@pytest.mark.thorough
@pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_another_backend_that_was_asked_for_is_left_in_its_place(variable):
    run_loud_program("pytorch/left_alone.py", **{variable: "backend:cudaMallocAsync"})


@pytest.mark.thorough
def test_settings_of_pytorchs_own_allocator_do_no_harm():
    run_program("pytorch/memory_statistics.py", "count_tensors", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    run_program("pytorch/captured.py", "shares_a_pool", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("program", "packages"),
    [
        ("with_transformers", ["transformers", "accelerate", "psutil"]),
        ("with_torch_geometric", ["torch_geometric"]),
        ("with_gpytorch", ["gpytorch"]),
    ],
)
@pytest.mark.device_memory(gib=5)
def test_packages_on_top_of_pytorch(program, packages):
    for package in packages:
        import_or_skip(package)
    print(run_loud_program(f"pytorch/{program}.py"))


@pytest.mark.thorough
def test_lightning(torch):
    for package in ("lightning", "pytorch_lightning"):
        try:
            import_or_skip(package)
        except pytest.skip.Exception:
            continue
        print(run_loud_program("pytorch/with_lightning.py"))
        return
    pytest.skip("needs lightning")


@pytest.mark.thorough
@pytest.mark.parametrize("registers", [None, "1"], ids=["", "registered"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
@pytest.mark.device_memory(gib=6)
def test_training_over_nccl(torch, way, ranks, registers):
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs")
    hook = {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": registers}
    print(run_loud_program("pytorch/distributed_training.py", way, ranks, **hook))
