"""Leases of every library's handles: streams, hand-over, limits, and captures that go on meanwhile."""

import ctypes
import threading

import gpupool
import pytest
from gpu_helpers import POOLS, cupy, in_threads, pool_or_skip, run_python, stream_of


@pytest.mark.parametrize("name", POOLS)
def test_a_lease_has_its_stream_and_goes_to_the_next(name):
    pool = pool_or_skip(name)
    pool.trim()
    first, second = gpupool.Stream(), gpupool.Stream()
    with pool.lease(first) as lease:
        handle = int(lease)
        if name not in ("cudss", "cublaslt"):
            assert stream_of(pool, handle) == first.ptr
    created = pool.stats().created
    with pool.lease(second) as lease:
        assert int(lease) == handle
        if name not in ("cudss", "cublaslt"):
            assert stream_of(pool, handle) == second.ptr
    assert (pool.stats().created, pool.stats().leased) == (created, 0)


@pytest.mark.parametrize("name", ["cusparse", "cublas"])
def test_threads_need_as_many_handles_as_work_at_once(name):
    pool = pool_or_skip(name)
    pool.trim()
    stream, created, turns = gpupool.Stream(), pool.stats().created, threading.Semaphore(2)

    def work(_):
        for _ in range(50):
            with turns, pool.lease(stream) as lease:
                assert int(lease) != 0

    in_threads(16, work)
    # Two work at once; a third and fourth may be giving theirs back.
    assert pool.stats().created - created <= 4
    assert pool.trim() <= 4


# What an owner may change, by the functions that set and get it, and what a new handle has.
CHANGES = [
    ("cublas", "cublasSetPointerMode_v2", "cublasGetPointerMode_v2", 1, 0),
    ("cublas", "cublasSetAtomicsMode", "cublasGetAtomicsMode", 1, 0),
    ("cublas", "cublasSetMathMode", "cublasGetMathMode", 3, 0),
    ("cublas", "cublasSetSmCountTarget", "cublasGetSmCountTarget", 8, 0),
    ("cusparse", "cusparseSetPointerMode", "cusparseGetPointerMode", 1, 0),
    ("cusolver", "cusolverDnSetDeterministicMode", "cusolverDnGetDeterministicMode", 2, 1),
]


@pytest.mark.parametrize(("name", "setter", "getter", "changed", "new"), CHANGES)
def test_what_an_owner_changed_is_set_back_for_the_next(name, setter, getter, changed, new):
    pool = pool_or_skip(name)
    pool.trim()
    library, stream = ctypes.CDLL(pool.path), gpupool.Stream()

    def get(handle):
        value = ctypes.c_int(-1)
        assert getattr(library, getter)(ctypes.c_void_p(handle), ctypes.byref(value)) == 0
        return value.value

    with pool.lease(stream) as lease:
        handle = int(lease)
        assert get(handle) == new
        assert getattr(library, setter)(ctypes.c_void_p(handle), changed) == 0
        assert get(handle) == changed
    with pool.lease(stream) as lease:
        assert (int(lease), get(handle)) == (handle, new)
        getattr(library, setter)(ctypes.c_void_p(handle), changed)
    # A thread's window gets it as new, too.
    (found,) = in_threads(1, lambda _: (pool.handle(stream), get(pool.handle(stream))))
    assert found == (handle, new)


BUSY = """
extern "C" __global__ void busy(long long cycles, volatile int *stop) {
  const long long end = clock64() + cycles;
  while (clock64() < end && !*stop) {}
}
"""


@pytest.mark.parametrize("name", POOLS)
def test_a_hand_over_waits_for_no_work_of_the_former_stream(name):
    pool = pool_or_skip(name)
    pool.trim()
    busy = cupy.RawKernel(BUSY, "busy")
    first, second = gpupool.Stream(), gpupool.Stream()
    stop = cupy.zeros(1, dtype=cupy.int32)
    cupy.cuda.runtime.deviceSynchronize()
    with pool.lease(first) as lease:
        handle = int(lease)
    with cupy.cuda.ExternalStream(first.ptr):
        busy((1,), (1,), (10**9, stop))
    with pool.lease(second) as lease:
        assert int(lease) == handle
    waits, is_busy = not second.query(), not first.query()
    with cupy.cuda.Stream(non_blocking=True):
        stop.fill(1)
    first.synchronize()
    second.synchronize()
    assert (waits, is_busy) == (False, True)


CAPTURE = """
import sys
import threading

import cupy
import gpupool

names, mode = sys.argv[1].split(","), getattr(cupy.cuda.runtime, "streamCaptureMode" + sys.argv[2])
pools = [getattr(gpupool, name) for name in names]
step = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "step")
failed, ready, trimmed = [], threading.Barrier(18), threading.Event()

def ask(number):
    try:
        ready.wait()
        stream = gpupool.Stream()
        for pool in pools[number % len(pools):] + pools[:number % len(pools)]:
            assert pool.handle(stream) != 0
            with pool.lease(stream) as lease:
                assert int(lease) != 0
    except BaseException as error:
        failed.append(error)

def trim():
    ready.wait()
    while not trimmed.is_set():
        for pool in pools:
            pool.trim()

captured = gpupool.Stream()
with cupy.cuda.ExternalStream(captured.ptr) as stream:
    x, y, z = cupy.arange(1000.0), cupy.zeros(1000), cupy.zeros(1000)
    step(x, z)
    z.fill(0)
    stream.synchronize()
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    trimmer = threading.Thread(target=trim)
    stream.begin_capture(mode=mode)
    for thread in [*threads, trimmer]:
        thread.start()
    step(x, y)
    ready.wait()
    for pool in pools:
        with pool.lease(captured) as lease:
            assert int(lease) != 0
    for thread in threads:
        thread.join()
    trimmed.set()
    trimmer.join()
    step(y, z)
    graph = stream.end_capture()
    assert not failed, failed
    for _ in range(3):
        graph.launch(stream)
        stream.synchronize()
        assert (z.get() == 4 * x.get() + 3).all(), "replayed work is wrong"
        x += 1
assert [pool.stats().leased for pool in pools] == [0] * len(pools)
"""


@pytest.mark.parametrize("mode", ["Global", "ThreadLocal", "Relaxed"])
def test_a_capture_survives_first_handles_leases_and_trims_in_many_threads(mode):
    names = [name for name in POOLS if getattr(gpupool, name).available]
    run_python("-c", CAPTURE, ",".join(names), mode)


# A capture that nobody told gpupool of, on a stream that only its owner knows.
FOREIGN = """
import sys
from concurrent.futures import ThreadPoolExecutor

import cupy
import gpupool

pool = getattr(gpupool, sys.argv[1])
step = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "step")

def use(_):
    # A stream that is gone when the next thread gets the handle.
    stream = cupy.cuda.Stream(non_blocking=True)
    with pool.lease(stream) as lease:
        assert int(lease) != 0
    return stream.ptr

with cupy.cuda.Stream(non_blocking=True) as stream:
    x, y = cupy.arange(1000.0), cupy.zeros(1000)
    step(x, y)
    y.fill(0)
    use(0)
    stream.synchronize()
    stream.begin_capture(mode=cupy.cuda.runtime.streamCaptureModeGlobal)
    step(x, y)
    with ThreadPoolExecutor(1) as executor:
        list(executor.map(use, range(3)))
    graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    assert (y.get() == 2 * x.get() + 1).all()
"""


@pytest.mark.parametrize("name", POOLS)
def test_hand_overs_spoil_no_capture_of_somebody_else(name):
    pool_or_skip(name)
    run_python("-c", FOREIGN, name)


def test_a_limit_holds_for_real_handles():
    pool = pool_or_skip("cublas")
    pool.trim()
    stream, before = gpupool.Stream(), pool.stats()
    pool.limit = before.created - before.destroyed + 1
    try:
        with pool.lease(stream), pytest.raises(gpupool.PoolExhausted, match="cublas"):
            pool.lease(stream, timeout=0.01)
        with pool.lease(stream):
            pass
    finally:
        pool.limit = None
    assert pool.stats().created == before.created + 1


@pytest.mark.parametrize("name", POOLS)
def test_threads_that_alternate_devices_get_each_ones_handles(name):
    pool = pool_or_skip(name)
    if gpupool.device_count() < 2:
        pytest.skip("needs two GPUs")
    streams = [gpupool.Stream(device) for device in range(2)]
    before, handles = cupy.cuda.runtime.getDevice(), [set(), set()]

    def work(number):
        own = [pool.handle(stream) for stream in streams]
        for turn in range(200):
            device = (number + turn) % 2
            with pool.lease(streams[device]) as lease:
                assert (lease.device, pool.handle(streams[device])) == (device, own[device])
                handles[device].add(int(lease))
                if name not in ("cudss", "cublaslt"):
                    assert stream_of(pool, int(lease)) == streams[device].ptr
        return cupy.cuda.runtime.getDevice()

    # The caller's device stays current, and no handle is ever on the other one.
    assert in_threads(8, work) == [before] * 8
    assert handles[0].isdisjoint(handles[1]) or name == "cublaslt"
    stats = [pool.stats(device) for device in range(2)]
    assert [each.leased for each in stats] == [0, 0]
    assert pool.stats().created == sum(each.created for each in stats)
