"""Where gpupool cannot be PyTorch's allocator, that says why, and PyTorch goes on with its own."""

import sys

import gpupool
import torch
from errors import assert_says, raised
from gpupool._torch import library, place


def no_library(torch):
    raise library.NoLibrary("it is left out for this test")


def without_a_library():
    library.load = no_library
    for _ in range(2):
        assert_says(raised(gpupool.LibraryNotFound, gpupool.torch.enable), "it is left out for this test", "Mend that")
    assert not place.is_taken()
    assert torch.cuda.get_allocator_backend() == "native"
    assert float(torch.ones(10, device="cuda").sum()) == 10
    assert torch.cuda.memory_stats()["allocation.all.allocated"] > 0
    pool = gpupool.MemPool()
    with gpupool.torch.using(pool):
        tensor = torch.ones(10, device="cuda")
    assert pool.stats().live_bytes > 0
    assert float(tensor.sum()) == 10


def leaves_another_in_its_place():
    """PyTorch was told to use CUDA's own pool by PYTORCH_CUDA_ALLOC_CONF."""
    assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
    assert_says(raised(gpupool.Error, gpupool.torch.enable), "backend:cudaMallocAsync")
    assert float(torch.ones(10, device="cuda").sum()) == 10


if __name__ == "__main__":
    globals()[sys.argv[1]]()
