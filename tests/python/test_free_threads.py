"""Objects that threads share, all of them calling at once: what one of them ends, no other ends again.

On a free-threaded Python these calls really meet, with a GIL they take turns: `make free-threaded` runs them on one.
"""

import ctypes
import gc
import sys
import threading
from collections.abc import Callable

import gpupool
import pytest

THREADS = 8
ROUNDS = 100


def at_once(*functions: Callable[[], object]) -> list[object]:
    """Call each function in a thread of its own, all of them together, and return what they returned or raised."""
    barrier = threading.Barrier(len(functions))
    outcomes: list[object] = [None] * len(functions)

    def run(place: int, function: Callable[[], object]) -> None:
        barrier.wait()
        try:
            outcomes[place] = function()
        except gpupool.Error as error:
            outcomes[place] = error
        except BufferError as error:
            outcomes[place] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_threads_count_no_references_to_what_all_of_them_use():
    """Without a GIL each count of one object has the threads that use it wait for each other."""
    shared = [
        gpupool.empty,
        gpupool.synchronize,
        gpupool.DeviceBuffer,
        gpupool.MemPool,
        gpupool.Stream,
        gpupool.simulated,
    ]
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    # What is not counted has a number that no counting reaches; `sys._is_immortal` came with Python 3.14.
    assert [sys.getrefcount(each) > 1 << 30 for each in shared] == [not has_gil] * len(shared)


def of_type(outcomes: list[object], kind: type) -> int:
    return sum(isinstance(outcome, kind) for outcome in outcomes)


def test_importing_gpupool_turns_no_gil_on():
    if not hasattr(sys, "_is_gil_enabled") or "free-threading" not in sys.version:
        pytest.skip("a Python with a GIL")
    assert not sys._is_gil_enabled()


def test_of_threads_that_free_one_buffer_one_does():
    stream = gpupool.Stream()
    for _ in range(ROUNDS):
        with gpupool.MemPool() as pool:
            buffer = pool.empty(4096, stream)
            outcomes = at_once(*[buffer.free] * THREADS)
            assert outcomes.count(None) == 1
            assert of_type(outcomes, gpupool.InvalidValue) == THREADS - 1
            assert pool.stats().live_blocks == 0


def test_a_buffer_that_is_freed_while_others_use_it_is_either_there_or_not():
    stream, other = gpupool.Stream(), gpupool.Stream()
    for _ in range(ROUNDS):
        with gpupool.MemPool() as pool:
            buffer = pool.empty(4096, stream)
            address = buffer.ptr

            def use(buffer=buffer):
                buffer.record_stream(other)
                return buffer.ptr

            def copy(buffer=buffer):
                buffer.copy_from(bytes(4096))

            outcomes = at_once(use, copy, buffer.free, use, lambda buffer=buffer: repr(buffer), copy)
            for outcome in outcomes:
                assert outcome is None or isinstance(outcome, (str, gpupool.InvalidValue)) or outcome == address, (
                    outcome
                )
            if outcomes[2] is not None:
                # A copy was under way, which has ended.
                assert "another thread is copying it" in str(outcomes[2]), outcomes[2]
                buffer.free()
            stats = pool.stats()
            assert stats.live_blocks == stats.waiting_blocks


def test_a_pool_that_is_closed_while_others_allocate_loses_nothing():
    stream = gpupool.Stream()
    before = gpupool.memory_stats().live_blocks
    for _ in range(ROUNDS // 4):
        pool = gpupool.MemPool()

        def work(pool=pool):
            return [pool.empty(1 << 16, stream) for _ in range(20)]

        outcomes = at_once(work, work, pool.close, work, pool.trim, pool.stats)
        assert all(isinstance(outcome, list | gpupool.Error) for outcome in outcomes[:2] + outcomes[3:4])
        del outcomes, pool, work
    # What an error's frames kept.
    gc.collect()
    after = gpupool.memory_stats()
    assert after.live_blocks - after.waiting_blocks <= before


def test_pinned_memory_that_is_viewed_is_not_freed_under_the_view():
    for _ in range(ROUNDS):
        buffer = gpupool.empty_pinned(4096)
        outcomes = at_once(lambda buffer=buffer: memoryview(buffer), buffer.free)
        if isinstance(outcomes[0], memoryview):
            # Either the view came first and the memory stayed, or it found the memory gone.
            assert isinstance(outcomes[1], BufferError)
            outcomes[0][0] = 1
        else:
            assert outcomes[1] is None


def test_statistics_and_snapshots_are_taken_while_others_allocate():
    stream = gpupool.Stream()

    def work():
        for _ in range(ROUNDS):
            gpupool.empty(1 << 16, stream)

    def look():
        for _ in range(10):
            gpupool.memory_stats()
            gpupool.memory_snapshot()
            gpupool.memory_summary()

    outcomes = at_once(work, look, work, look, gpupool.empty_cache, work)
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]


def test_one_stream_object_is_dropped_by_the_last_of_its_threads():
    for _ in range(ROUNDS):
        streams = [gpupool.Stream()]

        def work(streams=streams):
            buffer = gpupool.empty(512, streams[0])
            address = ctypes.c_void_p(buffer.ptr)
            del buffer
            return address.value is not None

        assert at_once(*[work] * 4) == [True] * 4
        streams.clear()
