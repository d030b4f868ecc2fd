"""Code of the process that knows nothing of gpupool and calls the driver itself, as `libgpupool_watch.so` sees it."""

import ctypes

import gpupool
from double import MIB, driver

OUT_OF_MEMORY = 2


def use_device(device: int) -> int:
    """Make a device's primary context current on this thread, as CUDA's runtime does; return it."""
    context = ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    return context.value


def current_context() -> int | None:
    """Return this thread's context."""
    context = ctypes.c_void_p()
    assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value


def capture_mode(mode: int) -> int:
    """Set this thread's mode of captures, and return what it was: 0 is global, 2 relaxed."""
    exchanged = ctypes.c_int(mode)
    assert driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(exchanged)) == 0
    return exchanged.value


def take(mib: int) -> int:
    """Return the driver's status for an allocation of so many MiB, which is kept if it succeeds."""
    address = ctypes.c_uint64()
    return driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib * MIB))


def take_pages(mib: int, device: int) -> int:
    """Return its status for so many MiB of physical memory, which is kept if it succeeds."""
    handle = ctypes.c_uint64()
    properties = (ctypes.c_int * 8)(1, 0, 1, device)
    return driver.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(mib * MIB), properties, ctypes.c_uint64(0))


def reserved_mib(device: int = 0) -> int:
    """Return how much gpupool has of a device."""
    return gpupool.memory_stats(device).reserved_bytes // MIB


def cache(mib: int, pool: gpupool.MemPool | None = None, piece: int = 20) -> None:
    """Have so many MiB free, in pieces of so many."""
    empty = pool.empty if pool else gpupool.empty
    buffers = [empty(piece * MIB) for _ in range(mib // piece)]
    del buffers
