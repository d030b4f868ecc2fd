"""Handles while the device's memory is full: idle ones make room, and where none are, the error says who holds it."""

import ctypes
import re
import sys

import cupy
import gpupool
import numpy
from errors import raised

MIB = 1 << 20
runtime = cupy.cuda.runtime
x, y = cupy.arange(1000, dtype=cupy.float32), cupy.ones(1000, dtype=cupy.float32)


def load_libraries():
    """Make and destroy a handle of each: the first also loads code, into memory that is never given back."""
    for pool in (gpupool.cublas, gpupool.cusolver):
        assert (pool.warm(1), pool.trim()) == (1, 1), f"no first handle of {pool.name}"


def fill():
    """Take all memory, in ever smaller pieces, for what is free is not in one."""
    taken, size = [], runtime.memGetInfo()[0]
    while size >= MIB:
        try:
            taken.append(runtime.malloc(size))
        except runtime.CUDARuntimeError:
            size //= 2
    free = runtime.memGetInfo()[0]
    assert free < 64 * MIB, f"{free} bytes are free still"
    return taken


def use(handle):
    """Compute with a handle."""
    axpy = ctypes.CDLL(gpupool.cublas.path).cublasSaxpy_v2
    pointer, number = ctypes.c_void_p, ctypes.c_int
    axpy.argtypes = [pointer, number, ctypes.POINTER(ctypes.c_float), pointer, number, pointer, number]
    status = axpy(int(handle), 1000, ctypes.byref(ctypes.c_float(2)), x.data.ptr, 1, y.data.ptr, 1)
    assert status == 0, f"cublasSaxpy_v2 answered {status}"
    assert (y.get() == 2 * numpy.arange(1000) + 1).all(), "the sum is wrong"


def idle_ones_make_room(ask, before):
    assert gpupool.cusolver.warm(4) == 4, "four handles were not made"
    destroyed = gpupool.cusolver.stats().destroyed
    fill()
    handle = ask()
    # Only once a creation has failed are idle handles destroyed.
    stats = gpupool.cusolver.stats()
    assert (stats.destroyed, stats.idle) == (destroyed + 4, 0), f"idle handles are left: {stats}"
    after = gpupool.cublas.stats()
    assert (after.created, after.failures) == (before.created + 1, 0), f"the creation failed: {after}"
    use(handle)


def the_error_says_who_holds_it(ask, before):
    lease = gpupool.cusolver.lease()
    destroyed = gpupool.cusolver.stats().destroyed
    taken = fill()
    refused = raised(gpupool.OutOfMemory, ask)
    assert isinstance(refused, MemoryError), "it is no MemoryError"
    told = refused.library, refused.function, refused.device
    assert told == ("cublas", "cublasCreate_v2", 0), f"the error names {told}"
    sizes = refused.requested_bytes, refused.free_bytes
    assert sizes[0] == 64 * MIB > sizes[1], f"the bytes requested and free are {sizes}"
    assert refused.total_bytes == runtime.memGetInfo()[1], f"the device is told to have {refused.total_bytes} bytes"
    text = str(refused)
    assert "A cublas handle takes about 64.0 MiB. Free: " in text, f"what it takes is not told: {text}"
    assert re.search(r"Held by gpupool: cusolver [0-9.]+ MiB \(1 handle\)\. ", text), (
        f"who holds it is not told: {text}"
    )
    # What was in use stays so.
    assert gpupool.cusolver.stats().destroyed == destroyed, "a handle in use was destroyed"
    after = gpupool.cublas.stats()
    counts = after.created, after.failures, after.held, after.leased
    assert counts == (before.created, 1, 0, 0), f"the failure is counted as {after}"

    for piece in taken:
        runtime.free(piece)
    handle = ask()
    use(handle)
    after = gpupool.cublas.stats()
    assert (after.created, after.failures) == (before.created + 1, 1), f"with memory the creation failed: {after}"
    assert int(lease) != 0, "the lease has no handle"


def main(what, how):
    load_libraries()
    globals()[what](getattr(gpupool.cublas, how), gpupool.cublas.stats())


if __name__ == "__main__":
    main(*sys.argv[1:])
