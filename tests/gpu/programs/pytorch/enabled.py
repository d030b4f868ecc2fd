"""PyTorch with gpupool as the allocator of the whole process: enabled before it is imported, and once more after."""

import importlib

import gpupool

gpupool.torch.enable()
torch = importlib.import_module("torch")
gpupool.torch.enable()
MIB = 1 << 20
# About 20 ms of an H200.
SLEEP_CYCLES = 40_000_000


def totals():
    """Return the statistics of device 0."""
    return gpupool.memory_stats(0)


def filled(value, count=MIB):
    """Return a tensor of so many of the same integers."""
    return torch.full((count,), value, dtype=torch.int32, device="cuda")


def all_are(tensor, value):
    """Return whether a tensor has this value everywhere."""
    return bool((tensor == value).all())
