"""Handles while the device's memory is full: idle ones make room, and where none are, the error says who holds it.

Each test is a process of its own, and fills the device. So nothing else may run on it meanwhile.
"""

import pytest
from gpu_helpers import pool_or_skip, run_python

pytestmark = pytest.mark.alone

PRELUDE = """
import ctypes
import sys

import cupy
import gpupool
import numpy

MIB = 1 << 20
runtime = cupy.cuda.runtime
ask = getattr(gpupool.cublas, sys.argv[1])
x, y = cupy.arange(1000, dtype=cupy.float32), cupy.ones(1000, dtype=cupy.float32)

# The first handle of a library also loads its code, into memory that is never given back.
for pool in (gpupool.cublas, gpupool.cusolver):
    assert (pool.warm(1), pool.trim()) == (1, 1)

def fill():
    # In ever smaller pieces, for what is free is not in one.
    taken, size = [], runtime.memGetInfo()[0]
    while size >= MIB:
        try:
            taken.append(runtime.malloc(size))
        except runtime.CUDARuntimeError:
            size //= 2
    assert runtime.memGetInfo()[0] < 64 * MIB, runtime.memGetInfo()
    return taken

def use(handle):
    axpy = ctypes.CDLL(gpupool.cublas.path).cublasSaxpy_v2
    pointer, number = ctypes.c_void_p, ctypes.c_int
    axpy.argtypes = [pointer, number, ctypes.POINTER(ctypes.c_float), pointer, number, pointer, number]
    assert axpy(int(handle), 1000, ctypes.byref(ctypes.c_float(2)), x.data.ptr, 1, y.data.ptr, 1) == 0
    assert (y.get() == 2 * numpy.arange(1000) + 1).all()

before = gpupool.cublas.stats()
"""

IDLE = """
assert gpupool.cusolver.warm(4) == 4
destroyed = gpupool.cusolver.stats().destroyed
taken = fill()
handle = ask()
# Only once a creation has failed are idle handles destroyed.
assert gpupool.cusolver.stats().destroyed == destroyed + 4
assert gpupool.cusolver.stats().idle == 0
after = gpupool.cublas.stats()
assert (after.created, after.failures) == (before.created + 1, 0)
use(handle)
"""

HELD = """
import re

lease = gpupool.cusolver.lease()
destroyed = gpupool.cusolver.stats().destroyed
taken = fill()
try:
    ask()
    raise SystemExit("a handle was made where there was no memory for it")
except gpupool.OutOfMemory as error:
    refused = error
assert isinstance(refused, MemoryError)
assert (refused.library, refused.function, refused.device) == ("cublas", "cublasCreate_v2", 0)
assert refused.requested_bytes == 64 * MIB > refused.free_bytes
assert refused.total_bytes == runtime.memGetInfo()[1]
text = str(refused)
assert "A cublas handle takes about 64.0 MiB. Free: " in text, text
assert re.search(r"Held by gpupool: cusolver 1 \\([0-9.]+ MiB\\)\\. ", text), text
# What was in use stays so.
assert gpupool.cusolver.stats().destroyed == destroyed
after = gpupool.cublas.stats()
assert (after.created, after.failures, after.held, after.leased) == (before.created, 1, 0, 0)

for piece in taken:
    runtime.free(piece)
handle = ask()
use(handle)
after = gpupool.cublas.stats()
assert (after.created, after.failures) == (before.created + 1, 1)
assert int(lease) != 0
"""


@pytest.mark.parametrize("how", ["handle", "lease"])
@pytest.mark.parametrize("code", [IDLE, HELD], ids=["idle", "held"])
def test_a_handle_where_memory_is_full(code, how):
    pool_or_skip("cublas")
    pool_or_skip("cusolver")
    run_python("-c", PRELUDE + code, how)
