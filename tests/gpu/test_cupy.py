"""CuPy over gpupool: its own programs, in threads, pools, graphs and short of memory, and its handles."""

import gc
import importlib

import gpupool
import numpy as np
import pytest
from gpu_helpers import cupy, import_or_skip, in_threads, pool_or_skip, run_python, stream_of

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def enabled():
    """CuPy over gpupool, and no memory left."""
    gpupool.cupy.enable()
    before = settled()
    yield
    gpupool.cupy.disable()
    assert settled() == before


def settled():
    """How many blocks live once everything is done."""
    gc.collect()
    cupy.cuda.Device().synchronize()
    gpupool.empty_cache()
    return gpupool.memory_stats().live_blocks


@pytest.mark.usefixtures("enabled")
def test_a_stream_for_each_piece_of_work_takes_the_memory_of_those_before():
    before = gpupool.memory_stats().reserved_bytes
    for value in range(30):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            arrays = [cupy.full(64 * MIB // 4, value, dtype=np.int32) for _ in range(3)]
            assert all(int(array.max()) == int(array.min()) == value for array in arrays)
            stream.synchronize()
            # The buffers keep the stream that they are freed on.
            del stream, arrays
    # The first did not know that others would look for memory.
    assert gpupool.memory_stats().reserved_bytes - before < 3 * 200 * MIB


def buffer_of(array):
    """The gpupool.DeviceBuffer that an array is in."""
    return array.data.mem._owner


def compute(seed):
    """What CuPy programs do, with temporaries of many sizes. Return how far it is from NumPy's."""
    values = np.random.default_rng(seed).standard_normal((200 + seed, 300))
    a = cupy.asarray(values)
    expected = np.sort(np.abs(values @ values.T + 1), axis=1).cumsum(axis=1)
    found = cupy.sort(cupy.abs(a @ a.T + 1), axis=1).cumsum(axis=1)
    return float(abs(found.get() - expected).max() / abs(expected).max())


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("threads", [1, 16])
def test_programs_run_as_before(threads):
    def work(number):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            errors = [compute(number + turn) for turn in range(10)]
            array = cupy.empty(10)
            assert buffer_of(array).stream == stream.ptr
            stream.synchronize()
        return max(errors)

    allocations = gpupool.memory_stats().allocations
    assert max(in_threads(threads, work)) < 1e-12
    assert gpupool.memory_stats().allocations >= allocations + threads * 10 * 5


@pytest.mark.usefixtures("enabled")
def test_threads_have_pools_of_their_own():
    def work(number):
        pool = gpupool.MemPool(limit=256 * MIB)
        with cupy.cuda.Stream(non_blocking=True) as stream, gpupool.cupy.using(pool):
            error = compute(number)
            array = cupy.full(1000, number)
            assert buffer_of(array).pool_id == pool.id
            with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
                cupy.empty(GIB, dtype=cupy.uint8)
            assert int(array.sum()) == 1000 * number
            stream.synchronize()
        del array
        pool.trim()
        assert pool.stats().live_blocks == 0
        return error

    assert max(in_threads(16, work)) < 1e-12


def test_arrays_from_before_and_after_keep_their_memory():
    own = cupy.get_default_memory_pool()
    before, used = cupy.arange(1000), own.used_bytes()
    gpupool.cupy.enable()
    inside = before + 1
    gpupool.cupy.disable()
    after = inside + 1
    assert buffer_of(inside).nbytes == inside.nbytes
    assert int(after.sum()) == int(before.sum()) + 2000
    live = gpupool.memory_stats().live_blocks
    del inside
    assert gpupool.memory_stats().live_blocks == live - 1
    # CuPy's own pool has its own back, in its units of 512 bytes.
    del before, after
    assert own.used_bytes() == used - 8192


@pytest.mark.usefixtures("enabled")
def test_out_of_memory_is_cupys_error_and_frees_what_cupy_holds_itself():
    own = cupy.get_default_memory_pool()
    # More than it can have cached, so that it is a segment of its own.
    with cupy.cuda.using_allocator(own.malloc):
        cupy.empty(GIB, dtype=cupy.uint8)
    held = own.total_bytes()
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="Out of memory allocating") as raised:
        cupy.empty(1 << 50, dtype=cupy.uint8)
    assert isinstance(raised.value.__cause__, gpupool.OutOfMemory)
    assert own.total_bytes() <= held - GIB
    assert compute(1) < 1e-12


@pytest.mark.alone
@pytest.mark.usefixtures("enabled")
def test_limits_and_empty_caches():
    pool, total = gpupool.cupy.get_default_memory_pool(), cupy.cuda.runtime.memGetInfo()[1]
    pool.set_limit(size=pool.total_bytes() + 256 * MIB)
    try:
        assert pool.get_limit() == pytest.approx(pool.total_bytes() + 256 * MIB, abs=2)
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="limit set to"):
            cupy.empty(512 * MIB, dtype=cupy.uint8)
        free = cupy.cuda.runtime.memGetInfo()[0]
        array = cupy.empty(200 * MIB, dtype=cupy.uint8)
        assert cupy.cuda.runtime.memGetInfo()[0] <= free - 190 * MIB
        del array
        pool.free_all_blocks()
        cupy.cuda.Device().synchronize()
        pool.free_all_blocks()
        assert cupy.cuda.runtime.memGetInfo()[0] >= free - 8 * MIB
    finally:
        pool.set_limit()
    assert pool.get_limit() == 0
    # The driver and the runtime mean the same memory.
    pool.set_limit(size=total // 2)
    fraction = gpupool.get_per_process_memory_fraction()
    pool.set_limit()
    assert fraction == pytest.approx(0.5, abs=0.01)


@pytest.mark.usefixtures("enabled")
def test_a_graph_has_its_memory_for_itself():
    pool = gpupool.MemPool()
    step = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "gpupool_step")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        x, out = cupy.zeros(MIB), cupy.zeros(MIB)

        def run():
            first = cupy.empty_like(x)
            step(x, first)
            second = cupy.empty_like(x)
            step(first, second)
            del first
            third = cupy.empty_like(x)
            step(second, third)
            step(third, out)
            return {second.data.ptr, third.data.ptr}

        # Compiles and loads the kernel.
        run()
        stream.synchronize()
        with pool.capture(stream) as memory:
            stream.begin_capture()
            addresses = run()
            graph = stream.end_capture()
        for value in range(20):
            x.fill(value)
            with gpupool.cupy.using(pool):
                others = [cupy.full(MIB, 99.0) for _ in range(4)]
            assert not addresses & {other.data.ptr for other in others}
            graph.launch(stream)
            stream.synchronize()
            assert (out.get() == 16 * value + 15).all()
            assert all((other.get() == 99).all() for other in others)
            del others
        pool.trim()
        assert pool.stats().reserved_bytes > 0
        del graph
        memory.reset()
        pool.trim()
        cupy.cuda.Device().synchronize()
        pool.trim()
        assert pool.stats().reserved_bytes == 0


@pytest.mark.usefixtures("enabled")
def test_two_libraries_allocate_from_one_pool():
    torch = import_or_skip("torch")
    pool = gpupool.MemPool()
    with gpupool.cupy.using(pool):
        array = cupy.arange(1000, dtype=cupy.float32)
        # Without a stream it is CuPy's current one, which torch.from_dlpack waits for.
        buffer = gpupool.empty(4000)
    assert (buffer_of(array).pool_id, buffer.pool_id) == (pool.id, pool.id)
    tensor = torch.from_dlpack(buffer).view(torch.float32)
    tensor.copy_(torch.from_dlpack(array))
    tensor += 1
    torch.cuda.synchronize()
    assert float((cupy.from_dlpack(tensor) - array).sum()) == 1000
    assert pool.stats().live_blocks == 2


@pytest.mark.usefixtures("enabled")
def test_handles_follow_cupys_stream():
    pool = pool_or_skip("cublas")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        assert stream_of(pool, pool.handle()) == stream.ptr
        assert gpupool.empty(10).stream == stream.ptr


PER_THREAD = """
import os
os.environ["CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"] = "1"
import threading
from concurrent.futures import ThreadPoolExecutor
import cupy
import gpupool

gpupool.cupy.enable()
together = threading.Barrier(16, timeout=60)

def work(number):
    together.wait()
    for turn in range(50):
        array = cupy.full(100_000, number, dtype=cupy.int64)
        assert array.data.mem._owner.stream == 2
        assert int((array * 2 + turn).sum()) == (2 * number + turn) * 100_000
    # Freed by another thread than the one whose stream it is.
    return array

with ThreadPoolExecutor(16) as executor:
    arrays = list(executor.map(work, range(16)))
assert [int(array.sum()) for array in arrays] == [number * 100_000 for number in range(16)]
del arrays
cupy.cuda.Device().synchronize()
gpupool.empty_cache()
assert gpupool.memory_stats().live_blocks == 0
"""


def test_each_threads_default_stream_is_its_own():
    run_python("-c", PER_THREAD)


LIMIT = """
import os
os.environ["CUPY_GPU_MEMORY_LIMIT"] = "1%"
import cupy
import gpupool

gpupool.cupy.enable()
total = cupy.cuda.runtime.memGetInfo()[1]
try:
    cupy.empty(total // 50, dtype=cupy.uint8)
except cupy.cuda.memory.OutOfMemoryError as error:
    assert "limit set to" in str(error)
else:
    raise AssertionError
gpupool.cupy.disable()
gpupool.cupy.enable()
gpupool.cupy.disable()
assert gpupool.get_per_process_memory_fraction() == 1
"""


def test_the_limit_of_the_environment_is_kept():
    run_python("-c", LIMIT)


HANDLES = """
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
import cupy
import cupyx.scipy.sparse
import gpupool
import numpy
from cupy_backends.cuda.libs import cublas

gpupool.cupy.enable(handles=True)
pools = [gpupool.cublas, gpupool.cusolver, gpupool.cusparse]
threads = int(sys.argv[1])
together = threading.Barrier(threads, timeout=60)

def work(seed):
    a = numpy.random.default_rng(seed).standard_normal((64, 64))
    s = a @ a.T + 64 * numpy.eye(64)
    together.wait()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        on_gpu = cupy.asarray(a)
        product = on_gpu @ on_gpu.T + 64 * cupy.eye(64)
        factor = cupy.linalg.cholesky(product)
        sums = cupyx.scipy.sparse.csr_matrix(product) @ cupy.ones(64)
        assert numpy.allclose(product.get(), s)
        assert numpy.allclose(factor.get(), numpy.linalg.cholesky(s))
        assert numpy.allclose(sums.get(), s.sum(axis=1))
        stream.synchronize()
    assert gpupool.cublas.stats().leased >= 1
    together.wait()

def wave():
    with ThreadPoolExecutor(threads) as executor:
        list(executor.map(work, range(threads)))

for _ in range(3):
    wave()
for pool in pools:
    # Python joins a thread a little before it ends.
    while pool.stats().leased:
        os.sched_yield()
    stats = pool.stats()
    assert 1 <= stats.created <= threads and stats.idle == stats.created, (pool.name, stats)

# Whoever makes a handle has it for itself.
first, second = cublas.create(), cublas.create()
assert first != second
cublas.destroy(first)
cublas.destroy(second)
assert gpupool.cublas.stats().leased == 0

gpupool.cupy.disable()
created = gpupool.cublas.stats().created
thread = threading.Thread(target=lambda: cupy.ones((8, 8)) @ cupy.ones((8, 8)))
thread.start()
thread.join()
assert gpupool.cublas.stats().created == created
gpupool.cupy.enable(handles=True)
# The main thread has one when the process ends.
assert float((cupy.eye(8) @ cupy.eye(8)).sum()) == 8
assert gpupool.cublas.stats().leased == 1
"""


@pytest.mark.parametrize("threads", ["1", "16"])
def test_handles_of_threads_go_back_to_the_pool(threads):
    import_or_skip("scipy.sparse")
    run_python("-c", HANDLES, threads)


CAPTURE = """
import threading
import cupy
import gpupool

gpupool.cupy.enable(handles=True)
step = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "gpupool_step")
other = cupy.cuda.Stream(non_blocking=True)
products = []

def multiply():
    with other:
        products.append(a @ a)

def in_thread():
    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()

with cupy.cuda.Stream(non_blocking=True) as stream:
    a, x, y = cupy.eye(64), cupy.arange(1000.0), cupy.zeros(1000)
    step(x, y)
    stream.synchronize()
    # Loads the kernels, which no capture survives.
    in_thread()
    cupy.cuda.Device().synchronize()
    y.fill(0)
    stream.synchronize()
    stream.begin_capture(mode=cupy.cuda.runtime.streamCaptureModeGlobal)
    step(x, y)
    # CuPy's own handle would be destroyed as the thread ends, and the capture with it.
    in_thread()
    graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    other.synchronize()
    assert (y.get() == 2 * x.get() + 1).all()
    assert all((product.get() == a.get()).all() for product in products)
assert gpupool.cublas.stats().created == 1
"""


def test_captures_survive_the_end_of_a_thread_that_had_a_handle():
    run_python("-c", CAPTURE)


EXIT = """
import sys
for name in sys.argv[1].split("-"):
    __import__(name)
import cupy
import gpupool
import threading

gpupool.cupy.enable(handles=True)
pool = gpupool.MemPool()
scope = gpupool.cupy.using(pool)
scope.__enter__()
inside = cupy.arange(1000)
cycle = [inside + 1]
cycle.append(cycle)
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    product = cupy.eye(64) @ cupy.eye(64)

def work(started):
    array = cupy.arange(1000) + 1
    with cupy.cuda.Stream(non_blocking=True):
        b = cupy.eye(8) @ cupy.eye(8)
    started.set()
    threading.Event().wait()

for _ in range(4):
    started = threading.Event()
    threading.Thread(target=work, args=(started,), daemon=True).start()
    assert started.wait(60)
"""


@pytest.mark.parametrize("order", ["cupy-gpupool", "gpupool-cupy"])
def test_exits_cleanly_with_live_arrays_and_handles(order):
    run_python("-c", EXIT, order)


def test_the_example_runs_with_and_without(examples):
    example = importlib.import_module("cupy_pool")
    own, pooled = example.compare(steps=60)
    assert own.checksum == pytest.approx(pooled.checksum, rel=1e-12)
    assert 0 < pooled.peak_bytes <= own.peak_bytes
    output = run_python(str(examples / "cupy_pool.py"))
    assert "CuPy's own pool" in output
    assert "gpupool" in output
