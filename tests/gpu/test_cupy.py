"""CuPy over gpupool: its own programs, in threads, pools, graphs and short of memory, and its handles."""

import gc
import importlib

import gpupool
import numpy as np
import pytest
from gpu_helpers import (
    cupy,
    import_or_skip,
    in_threads,
    pinned_blocks,
    run_program,
    run_python,
)
from long_kernel import LongKernel

pytestmark = pytest.mark.device_memory(gib=6)

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def enabled():
    """Put CuPy over gpupool, and check that no memory is left."""
    gpupool.cupy.enable()
    before = settled()
    yield
    gpupool.cupy.disable()
    assert settled() == before


def settled():
    """Return how many blocks live once everything is done."""
    gc.collect()
    cupy.cuda.Device().synchronize()
    gpupool.empty_cache()
    return gpupool.memory_stats().live_blocks


def memory_of(array):
    """Return the object that has an array's memory, and tells its stream and its pool."""
    return array.data.mem


def compute(seed):
    """Do what CuPy programs do, with temporaries of many sizes. Return how far it is from NumPy's."""
    values = np.random.default_rng(seed).standard_normal((200 + seed, 300))
    a = cupy.asarray(values)
    expected = np.sort(np.abs(values @ values.T + 1), axis=1).cumsum(axis=1)
    found = cupy.sort(cupy.abs(a @ a.T + 1), axis=1).cumsum(axis=1)
    return float(abs(found.get() - expected).max() / abs(expected).max())


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("threads", [1, 16])
def test_programs_run_as_before(threads):
    def work(number):
        pool = gpupool.MemPool(limit=256 * MIB)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            errors = [compute(number + turn) for turn in range(10)]
            array = cupy.empty(10)
            assert memory_of(array).stream == stream.ptr
            with gpupool.cupy.using(pool):
                errors.append(compute(number))
                array = cupy.full(1000, number)
                assert memory_of(array).pool_id == pool.id
                with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
                    cupy.empty(GIB, dtype=cupy.uint8)
            assert int(array.sum()) == 1000 * number
            stream.synchronize()
        del array
        pool.trim()
        assert pool.stats().live_blocks == 0
        return max(errors)

    allocations = gpupool.memory_stats().allocations
    assert max(in_threads(threads, work)) < 1e-12
    assert gpupool.memory_stats().allocations >= allocations + threads * 10 * 5


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


def test_each_threads_default_stream_is_its_own():
    run_program("frameworks/cupy_default_streams.py", CUPY_CUDA_PER_THREAD_DEFAULT_STREAM="1")


@pytest.mark.parametrize("threads", ["1", "16"])
def test_handles_of_threads_go_back_to_the_pool(threads):
    import_or_skip("scipy.sparse")
    run_program("frameworks/cupy_handles.py", threads)


def test_captures_survive_the_end_of_a_thread_that_had_a_handle():
    run_program("captures/handles.py", "a_thread_with_one_of_cupys_ends")


@pytest.mark.parametrize("order", ["cupy-gpupool", "gpupool-cupy"])
def test_exits_cleanly_with_live_arrays_and_handles(order):
    run_program("ends/with_frameworks.py", *order.split("-"), "cupy_arrays")


def test_the_example_runs_with_and_without(examples):
    example = importlib.import_module("cupy_pool")
    own, pooled = example.compare(steps=60)
    assert own.checksum == pytest.approx(pooled.checksum, rel=1e-12)
    assert 0 < pooled.peak_bytes <= own.peak_bytes
    output = run_python(str(examples / "cupy_pool.py"))
    assert "CuPy's own pool" in output
    assert "gpupool" in output


@pytest.fixture
def pinned():
    """Put CuPy's pinned memory over gpupool too, and check that no block of it is left."""
    gpupool.cupy.enable(pinned=True)
    before = pinned_blocks()
    yield import_or_skip("cupyx")
    gpupool.cupy.disable()
    assert pinned_blocks() == before


def pattern(number, words):
    """Return words that tell where they are, and of which array."""
    return np.arange(words, dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(number)


def test_every_word_of_pinned_copies_comes_and_goes(pinned):
    allocations = gpupool.pinned_stats().allocations

    def work(number):
        words = 1 << 18
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for turn in range(50):
                seed = number * 1000 + turn
                there = pinned.empty_pinned(words, np.uint32)
                there[:] = pattern(seed, words)
                on_gpu = cupy.asarray(there, blocking=False)
                # The copy has still to read it.
                gpupool.cupy.record_stream(there)
                del there
                back = pinned.empty_pinned(words, np.uint32)
                (on_gpu + np.uint32(1)).get(stream=stream, out=back, blocking=False)
                stream.synchronize()
                assert (back == pattern(seed, words) + np.uint32(1)).all(), f"thread {number}, turn {turn}"
        return True

    assert all(in_threads(16, work))
    assert gpupool.pinned_stats().allocations >= allocations + 16 * 50 * 2


def test_memory_of_the_host_is_copied_through_gpupools(pinned):
    before = gpupool.pinned_stats().allocations
    values = pattern(3, 1 << 20)
    array = cupy.asarray(values)
    assert gpupool.pinned_stats().allocations > before
    assert (array.get() == values).all()


def test_a_recorded_stream_keeps_pinned_memory_from_the_next(pinned):
    words = 8 << 20
    kernel = LongKernel()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        target = cupy.empty(words, np.uint32)
        source = pinned.empty_pinned(words, np.uint32)
        source[:] = pattern(1, words)
        address = source.ctypes.data
        kernel.begin()
        target.set(source, stream=stream)
        gpupool.cupy.record_stream(source, stream)
        del source
        others = [pinned.empty_pinned(words, np.uint32) for _ in range(3)]
        assert not stream.done
        for other in others:
            assert other.ctypes.data != address
            other[:] = 0
        kernel.end()
        stream.synchronize()
        assert bool((target == cupy.asarray(pattern(1, words))).all())
    del others, kernel
    gc.collect()
    assert pinned.empty_pinned(words, np.uint32).nbytes == 4 * words
