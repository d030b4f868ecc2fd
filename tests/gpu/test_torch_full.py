"""gpupool as PyTorch's allocator, enabled at any time: nothing that PyTorch does with memory is lost.

Each test has a process of its own, since an allocator is a process's.
"""

import pytest
from gpu_helpers import import_or_skip, run_loud_program, run_prepared_program, run_program

pytestmark = pytest.mark.device_memory(gib=3)

PROGRAMS = {
    "memory_statistics": [
        "count_tensors",
        "tell_small_from_large",
        "have_every_key",
        "reset_peaks",
        "reset_sums",
        "count_failures",
        "make_a_summary",
        "follow_the_cache",
        "agree_with_gpupools",
        "ask_the_device",
    ],
    "history": [
        "is_in_segments_without_recording",
        "has_stacks_of_python",
        "has_stacks_of_cpp",
        "keeps_the_last_events",
        "leaves_out_actions",
        "is_dumped_for_the_viewer",
        "has_what_users_add",
        "tells_of_failures",
        "is_one_recording_with_gpupools",
    ],
    "pools": [
        "keep_memory_apart",
        "take_memory_from_their_allocator",
        "nest_in_gpupools",
        "are_gpupools",
        "help_when_memory_is_short",
        "keep_segments_whole",
        "serve_a_thread_each",
        "of_pytorchs_own_live_on",
        "outlive_disable",
        "refuse_what_is_wrong",
    ],
    "captured": [
        "has_its_memory_for_itself",
        "shares_a_pool",
        "two_at_once",
        "is_made_of_callables",
        "is_of_pytorchs_own_from_before",
        "outlives_disable",
        "frees_what_other_streams_used",
    ],
    "lifetimes": [
        "of_before_go_back",
        "of_meanwhile_go_back",
        "are_right_while_it_is_toggled",
        "of_16_threads_are_right",
        "at_the_end_of_the_process",
    ],
    "pinned": [
        "serves_every_way",
        "is_copied_right",
        "is_right_on_16_threads",
        "is_a_data_loaders_of_this_process",
        "keeps_activations",
        "waits_for_recorded_streams",
        "is_counted",
        "is_a_graphs_own",
        "of_before_goes_back",
        "outlives_disable",
        "is_limited",
        "is_all_that_is_gpupools",
        "at_the_end_of_the_process",
    ],
    "limits": [
        "say_what_memory_ran_out",
        "tell_observers",
        "ask_gpupools_callbacks",
        "are_fractions",
        "are_addresses",
        "are_of_cudnn",
        "are_without_a_cache",
        "are_of_pinned_memory_too",
        "keep_memory_for_recorded_streams",
        "are_of_two_gpus",
    ],
}


@pytest.fixture(autouse=True)
def torch():
    """Return PyTorch, or skip."""
    torch = import_or_skip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs PyTorch for CUDA")
    return torch


# What asks for all of the device, and what is a soak.
MARKS = {
    "ask_gpupools_callbacks": pytest.mark.alone,
    "are_right_while_it_is_toggled": pytest.mark.thorough,
}
CASES = [
    pytest.param(program, what, marks=MARKS.get(what, ()))
    for program, all_of_it in PROGRAMS.items()
    for what in all_of_it
]


@pytest.mark.parametrize(("program", "what"), CASES)
def test_with_gpupool_enabled(program, what):
    print(run_prepared_program(f"pytorch/{program}.py", what))


@pytest.mark.parametrize("what", ["are_of_the_profiler", "are_not_touched_by_workers"])
def test_with_gpupool_enabled_where_pytorch_says_more(what):
    print(run_prepared_program("pytorch/limits.py", what, is_loud=True))


def test_pinned_memory_of_a_data_loader_with_workers():
    # Python warns of forks with threads.
    print(run_loud_program("pytorch/pinned.py", "is_a_data_loaders_of_workers"))


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["train", "infer", "keeps_outputs_that_live_on", "outlives_disable"])
@pytest.mark.device_memory(gib=4)
def test_graph_trees(what):
    print(run_loud_program("pytorch/recompiled.py", what))


@pytest.mark.thorough
def test_the_library_is_compiled_at_first_use(tmp_path):
    print(run_program("pytorch/compiled.py", XDG_CACHE_HOME=str(tmp_path)))


def test_without_a_library():
    run_program("pytorch/left_alone.py", "without_a_library")


@pytest.mark.thorough
@pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_another_backend_that_was_asked_for_is_left_in_its_place(variable):
    run_loud_program("pytorch/left_alone.py", "leaves_another_in_its_place", **{variable: "backend:cudaMallocAsync"})


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
    print(
        run_loud_program(
            "pytorch/distributed_training.py", way, ranks, TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK=registers
        )
    )
