"""The first handle of a process can be asked for while a stream is captured, and the capture survives."""

import pytest
from gpu_helpers import POOLS, pool_or_skip, run_python

CAPTURE = """
import sys
from concurrent.futures import ThreadPoolExecutor

import cupy
import gpupool

name, mode, what = sys.argv[1:]
pool = getattr(gpupool, name)
mode = getattr(cupy.cuda.runtime, "streamCaptureMode" + mode)
step = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "step")
other_stream = cupy.cuda.Stream(non_blocking=True)

def in_other_thread(function, *arguments):
    # The thread ends before the capture does, and gives its handle back.
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function, *arguments).result()

# Some libraries wait for the device when a handle is destroyed, which no capture survives. So trimming spares theirs,
# as far as gpupool knows of the capture, and it knows of its own streams.
spares = what == "trim" and name not in ("cudnn", "cusparse")
own_stream = gpupool.Stream() if spares else None

with cupy.cuda.ExternalStream(own_stream.ptr) if spares else cupy.cuda.Stream(non_blocking=True) as stream:
    x, y, z = cupy.arange(1000.0), cupy.zeros(1000), cupy.zeros(1000)
    # Compiles the kernel and loads it.
    step(x, z)
    z.fill(0)
    if what == "trim":
        assert pool.warm(3) == 3
    stream.synchronize()

    stream.begin_capture(mode=mode)
    step(x, y)
    if what == "here":
        first = pool.handle(stream)
        assert pool.handle(stream) == first
    elif what == "thread":
        assert in_other_thread(pool.handle, other_stream) != 0
    elif what == "default stream":
        assert in_other_thread(pool.handle) != 0
    elif what == "warm":
        assert in_other_thread(pool.warm, 2) == 2
    elif what == "trim":
        assert in_other_thread(pool.trim) == (0 if spares else 3)
    step(y, z)
    graph = stream.end_capture()

    stream.synchronize()
    assert not z.get().any(), "captured work ran at once"
    for _ in range(3):
        graph.launch(stream)
        stream.synchronize()
        assert (z.get() == 4 * x.get() + 3).all(), "replayed work is wrong"
        x += 1

    # The pool works on.
    handle = pool.handle(stream)
    assert what != "here" or handle == first
    # cuBLASLt's handles are stateless: the library answers the same address to all.
    assert in_other_thread(pool.handle) != handle or name == "cublaslt"
    assert pool.stats().failures == 0
"""


@pytest.mark.parametrize("what", ["here", "thread", "default stream", "warm", "trim"])
@pytest.mark.parametrize("name", POOLS)
def test_global_capture_survives(name, what):
    pool_or_skip(name)
    run_python("-c", CAPTURE, name, "Global", what)


@pytest.mark.parametrize("mode", ["ThreadLocal", "Relaxed"])
@pytest.mark.parametrize("what", ["here", "thread"])
def test_other_captures_survive(mode, what):
    run_python("-c", CAPTURE, "cublas", mode, what)


VISIBLE = """
import cupy
import gpupool

pools = [gpupool.cublas, gpupool.cusolver]
for pool in pools:
    pool.warm(2)
x, y = cupy.arange(1000.0), cupy.zeros(1000)
step = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "step")
step(x, y)
y.fill(0)
# A stream that waits for the legacy default stream: the driver tells that it is captured.
with cupy.cuda.Stream() as stream:
    cupy.cuda.runtime.deviceSynchronize()
    stream.begin_capture(mode=cupy.cuda.runtime.streamCaptureModeGlobal)
    step(x, y)
    assert [pool.trim() for pool in pools] == [0, 0]
    graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    assert (y.get() == 2 * x.get() + 1).all()
assert [pool.stats().idle for pool in pools] == [2, 2]
assert [pool.trim() for pool in pools] == [2, 2]
"""


def test_trim_spares_handles_while_a_capture_is_visible():
    run_python("-c", VISIBLE)
