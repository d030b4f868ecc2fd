"""PyTorch that had used the GPU before gpupool became its allocator, with what it had then."""

from concurrent.futures import ThreadPoolExecutor

import gpupool
import torch
from gpupool._torch import place

MIB = 1 << 20


def filled(value, count=MIB):
    """Return a tensor of so many of the same integers."""
    return torch.full((count,), value, dtype=torch.int32, device="cuda")


def all_are(tensor, value):
    """Return whether a tensor has this value everywhere."""
    return bool((tensor == value).all())


def totals():
    """Return gpupool's statistics of device 0."""
    return gpupool.memory_stats(0)


def in_16_threads(work):
    """Call work(0) to work(15) in threads of their own, each with a stream of PyTorch's."""

    def run(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            work(number)

    with ThreadPoolExecutor(16) as executor:
        list(executor.map(run, range(16)))
    torch.cuda.synchronize()


# Of PyTorch's own allocator.
before = filled(5, 16 * MIB)
native_keys = set(torch.cuda.memory_stats())


# What PyTorch's own allocator had when gpupool took its place.
native_stats = {}


def enable():
    """Make gpupool PyTorch's allocator."""
    native_stats.update(torch.cuda.memory_stats())
    gpupool.torch.enable()
    assert place.is_taken()
