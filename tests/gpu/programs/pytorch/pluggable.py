"""gpupool as PyTorch's pluggable allocator, where there is no library for PyTorch and none can be made."""

import sys
import warnings

import gpupool
import torch
from errors import assert_says, raised
from gpupool._torch import library, place

MIB = 1 << 20


def no_library(torch):
    raise library.NoLibrary("it is left out for this test")


library.load = no_library


def works_as_far_as_it_goes():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gpupool.torch.enable()
        gpupool.torch.enable()
    (warning,) = [each for each in told if each.category is RuntimeWarning]
    assert_says(str(warning.message), "no library for PyTorch", "it is left out for this test")
    assert place.way() == "pluggable"
    assert torch.cuda.get_allocator_backend() == "pluggable"
    model = torch.nn.Linear(256, 256).cuda()
    for _ in range(10):
        model(torch.randn(64, 256, device="cuda")).sum().backward()
    assert gpupool.memory_stats(0).allocations > 20
    pool = gpupool.MemPool(limit=100 * MIB)
    with gpupool.torch.using(pool):
        tensor = torch.ones(MIB, device="cuda")
        assert_says(raised(torch.OutOfMemoryError, tensor.repeat, 100), "limit is 100.0 MiB")
    source, graph = torch.ones(MIB, device="cuda"), torch.cuda.CUDAGraph()
    source * 2  # loads the kernel
    with torch.cuda.graph(graph):
        result = source * 2
    graph.replay()
    assert bool((result == 2).all())
    raised(RuntimeError, torch.cuda.memory_stats)
    assert_says(raised(gpupool.Error, gpupool.torch.mem_pool), "pluggable allocator")
    gpupool.torch.disable()
    assert place.way() == "pluggable", "PyTorch has no way back"


def is_too_late_after_the_first_tensor():
    torch.empty(1, device="cuda")
    assert_says(raised(gpupool.Error, gpupool.torch.enable), "before the first tensor", "it is left out for this test")
    assert torch.cuda.get_allocator_backend() == "native"


def leaves_another_in_its_place():
    """PyTorch was told to use CUDA's own pool by PYTORCH_CUDA_ALLOC_CONF."""
    assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
    assert_says(raised(gpupool.Error, gpupool.torch.enable), "backend:cudaMallocAsync")
    assert float(torch.ones(10, device="cuda").sum()) == 10


if __name__ == "__main__":
    globals()[sys.argv[1]]()
