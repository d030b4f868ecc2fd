"""Numba in gpupool's memory, enabled before numba.cuda is imported, with kernels that are compiled and loaded."""

import gc
import importlib

import gpupool
import numpy as np

gpupool.numba.enable()
cuda = importlib.import_module("numba.cuda")
MIB = 1 << 20


@cuda.jit
def fill(out, value):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = value


@cuda.jit
def add(out, one, other):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = one[i] + other[i]


@cuda.jit
def slow_copy(out, source, milliseconds):
    for _ in range(milliseconds):
        cuda.nanosleep(1000000)
    i = cuda.grid(1)
    if i < out.size:
        out[i] = source[i]


def blocks(array):
    """Return how many blocks of 256 threads an array needs."""
    return (array.size + 255) // 256


def address(array):
    """Return where an array is."""
    return array.__cuda_array_interface__["data"][0]


def manager():
    """Return what numba.cuda allocates with."""
    return cuda.current_context().memory_manager


def live():
    """Return how many blocks are alive once Numba has freed what died."""
    gc.collect()
    manager().deallocations.clear()
    return gpupool.memory_stats(0).live_blocks


def assert_reserved_nothing(stats):
    """Check that a pool, or the device, has no memory left."""
    assert stats.reserved_bytes == 0, f"memory is left: {stats}"


def load():
    """Compile and load the kernels."""
    warm = [cuda.to_device(np.ones(1000, np.int32)) for _ in range(3)]
    fill[blocks(warm[0]), 256](warm[0], 1)
    add[blocks(warm[0]), 256](*warm)
    slow_copy[blocks(warm[0]), 256](warm[0], warm[1], 1)
    cuda.synchronize()


load()
assert live() == 0, "the first arrays are alive"
