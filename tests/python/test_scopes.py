"""Scopes follow the work: they are a task's own, and go to the threads that they are given to."""

import asyncio
import contextlib
import ctypes
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import gpupool
import pytest
from gpupool import _native
from own_memory import MIB, Allocator, allocate_in, c_functions, other_thread
from running import run_program
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")


def by_c_functions(kind, functions=(gpupool.c_api.malloc, gpupool.c_api.free)):
    """Return what allocates as CuPy does, with the GIL, or as PyTorch, without it, and returns its pool's id."""
    malloc, free = c_functions(*functions, kind)

    def pool_id():
        address = malloc(MIB, 0, None)
        segments = gpupool.memory_snapshot()["segments"]
        found = [segment for segment in segments if address in [block["address"] for block in segment["blocks"]]]
        free(address, MIB, 0, None)
        return found[0]["segment_pool_id"]

    return pool_id


def by_empty():
    return gpupool.empty(MIB).pool_id


WAYS = {
    "empty": by_empty,
    "C without the GIL": by_c_functions(ctypes.CFUNCTYPE),
    "C with the GIL": by_c_functions(ctypes.PYFUNCTYPE),
}
NONE = (0, 0)


# ---- asyncio ----


@pytest.mark.parametrize("pool_id", WAYS.values(), ids=WAYS)
def test_a_scope_is_its_tasks_alone(pool_id):
    async def work(turn, done, scope):
        seen = [pool_id()]
        await turn.acquire()
        with scope:
            for _ in range(2):
                seen.append(pool_id())
                done.release()
                await turn.acquire()
            seen.append(pool_id())
        done.release()
        await turn.acquire()
        seen.append(pool_id())
        done.release()
        return seen

    async def main():
        scopes = [*map(gpupool.use_mem_pool, pools), contextlib.nullcontext()]
        turns, done = [asyncio.Semaphore(0) for _ in scopes], asyncio.Semaphore(0)
        tasks = [asyncio.create_task(work(turn, done, scope)) for turn, scope in zip(turns, scopes, strict=True)]
        # One turn of each after the other, so that each task's awaits fall into the blocks of the others.
        for _ in range(4):
            for turn in turns:
                turn.release()
                await done.acquire()
        return await asyncio.gather(*tasks)

    pools = [gpupool.MemPool() for _ in range(2)]
    *scoped, plain = asyncio.run(main())
    assert scoped == [[NONE, pool.id, pool.id, pool.id, NONE] for pool in pools]
    assert plain == [NONE] * 5
    assert [pool.use_count() for pool in pools] == [1, 1]
    assert pool_id() == NONE


def test_a_task_that_waits_in_a_block_leaves_the_thread_as_it_was():
    async def hold(pool, entered, end):
        with gpupool.use_mem_pool(pool):
            entered.set()
            await end.wait()
            return gpupool.empty(MIB).pool_id

    async def main():
        entered, end = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(hold(pool, entered, end))
        await entered.wait()
        assert (gpupool.empty(MIB).pool_id, pool.use_count()) == (outer.id, 2)
        # A callback of the loop is in no task, and this task may have a scope of its own.
        seen = []
        asyncio.get_running_loop().call_soon(lambda: seen.append(gpupool.empty(MIB).pool_id))
        await asyncio.sleep(0)
        with inner:
            await asyncio.sleep(0)
            seen.append(gpupool.empty(MIB).pool_id)
        end.set()
        return [*seen, await task, gpupool.empty(MIB).pool_id]

    outer, inner, pool = [gpupool.MemPool() for _ in range(3)]
    # A scope around the loop is the thread's.
    with gpupool.use_mem_pool(outer):
        assert asyncio.run(main()) == [outer.id, inner.id, pool.id, outer.id]
    assert gpupool.empty(MIB).pool_id == NONE
    assert [each.use_count() for each in (outer, inner, pool)] == [1, 1, 1]


def test_what_a_task_starts_in_a_block_is_in_it_until_the_block_ends():
    async def child(ended):
        first = gpupool.empty(MIB).pool_id
        await ended.wait()
        return first, gpupool.empty(MIB).pool_id

    async def main():
        ended = asyncio.Event()
        with gpupool.use_mem_pool(pool):
            task = asyncio.create_task(child(ended))
            in_thread = await asyncio.to_thread(WAYS["empty"]), await asyncio.to_thread(WAYS["C with the GIL"])
            by_executor = await asyncio.get_running_loop().run_in_executor(None, by_empty)
        ended.set()
        return in_thread, by_executor, await task, await asyncio.to_thread(by_empty)

    pool = gpupool.MemPool()
    # Threads take on the context of what starts them where Python is told so, as it is by default without a GIL.
    of_executor = pool.id if getattr(sys.flags, "thread_inherit_context", 0) else NONE
    assert asyncio.run(main()) == ((pool.id, pool.id), of_executor, (pool.id, NONE), NONE)
    assert pool.use_count() == 1


@pytest.mark.parametrize("end", ["cancelled", "raises"])
def test_a_task_that_fails_leaves_its_block(end):
    async def work(entered):
        with gpupool.use_mem_pool(pool), gpupool.use_mem_pool(pool):
            entered.set()
            if end == "raises":
                raise KeyError(end)
            await asyncio.Event().wait()

    async def main():
        entered = asyncio.Event()
        task = asyncio.create_task(work(entered))
        await entered.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, KeyError):
            await task
        return pool.use_count(), gpupool.empty(MIB).pool_id

    pool = gpupool.MemPool()
    assert asyncio.run(main()) == (1, NONE)


def test_a_task_that_is_forgotten_in_its_block_leaves_no_use():
    async def work():
        with gpupool.use_mem_pool(pool):
            await asyncio.Event().wait()

    async def main():
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        assert pool.use_count() == 2
        # As where a loop is closed with tasks that were never awaited.
        task._log_destroy_pending = False
        del task

    pool = gpupool.MemPool()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    gc.collect()
    assert (pool.use_count(), gpupool.empty(MIB).pool_id) == (1, NONE)


def test_a_block_is_left_in_the_task_that_entered_it():
    async def leave(scope):
        scope.__exit__(None, None, None)

    async def main():
        scope = gpupool.use_mem_pool(pool)
        scope.__enter__()
        with pytest.raises(gpupool.InvalidValue, match="in a task that did not enter it"):
            await asyncio.create_task(leave(scope))
        assert gpupool.empty(MIB).pool_id == pool.id
        scope.__exit__(None, None, None)
        assert gpupool.empty(MIB).pool_id == NONE
        # Left by the thread once the loop has ended.
        scope.__enter__()
        return scope

    pool = gpupool.MemPool()
    scope = asyncio.run(main())
    assert pool.use_count() == 2
    scope.__exit__(None, None, None)
    # And the other way round.
    scope.__enter__()
    asyncio.run(leave(scope))
    assert (pool.use_count(), gpupool.empty(MIB).pool_id) == (1, NONE)


def test_a_graph_uses_the_pool_of_a_tasks_scope_too():
    async def main():
        _native.host_begin_capture(stream)
        try:
            with graphs.capture(stream) as memory, gpupool.use_mem_pool(inner):
                buffer = gpupool.empty(4 * MIB, stream)
        finally:
            _native.host_end_capture(stream)
        assert buffer.pool_id == inner.id
        assert inner.use_count() == 2
        memory.reset()

    graphs, inner, stream = gpupool.MemPool(), gpupool.MemPool(), gpupool.Stream()
    asyncio.run(main())
    assert (graphs.use_count(), inner.use_count()) == (1, 1)


def test_an_allocator_is_not_asked_to_supply_itself_in_a_task():
    async def main():
        with gpupool.use_mem_pool(pool):
            return gpupool.empty(MIB)

    def malloc(size, device, stream):
        inside.append(gpupool.empty(MIB).pool_id)
        with gpupool.use_mem_pool(other):
            inside.append(gpupool.empty(MIB).pool_id)
        return own.malloc(size, device, stream)

    inside, own, other = [], Allocator(), gpupool.MemPool()
    pool = gpupool.MemPool((malloc, own.free))
    buffer = asyncio.run(main())
    assert (buffer.pool_id, inside) == (pool.id, [NONE, other.id])


def test_functions_that_feed_another_allocator_follow_no_task():
    async def main():
        with gpupool.use_mem_pool(gpupool.MemPool()):
            return by_c_functions(ctypes.CFUNCTYPE, gpupool.c_api.feed(pool))()

    pool = gpupool.MemPool()
    assert asyncio.run(main()) == pool.id


def test_programs_without_tasks_do_not_load_asyncio():
    assert run_program("memory/no_asyncio.py") == "1 was left"


# ---- threads ----


def test_a_thread_pools_workers_are_in_the_pool_for_life():
    pool = gpupool.MemPool()
    with ThreadPoolExecutor(2, initializer=pool.token().enter) as executor:
        barrier = threading.Barrier(2)

        def work():
            barrier.wait()
            with gpupool.use_mem_pool(other):
                inner = gpupool.empty(MIB).pool_id
            return inner, gpupool.empty(MIB).pool_id

        other = gpupool.MemPool()
        tasks = [executor.submit(work) for _ in range(2)]
        assert [task.result() for task in tasks] == [(other.id, pool.id)] * 2
        assert (pool.use_count(), gpupool.empty(MIB).pool_id) == (3, NONE)
    wait_until(lambda: pool.use_count() == 1, "the workers' threads have ended")


@pytest.mark.parametrize("pool_id", WAYS.values(), ids=WAYS)
def test_a_scope_for_all_threads_serves_those_that_have_none(pool_id):
    pool, own = gpupool.MemPool(), gpupool.MemPool()
    with other_thread() as run:
        assert run(pool_id) == NONE
        with gpupool.use_mem_pool(pool, all_threads=True):
            assert pool.use_count() == 2
            assert (run(pool_id), pool_id()) == (pool.id, pool.id)
            assert run(allocate_in, own, MIB).pool_id == own.id
            with gpupool.use_mem_pool(own):
                assert (run(pool_id), pool_id()) == (pool.id, own.id)
        assert (run(pool_id), pool_id(), pool.use_count()) == (NONE, NONE, 1)


def test_a_task_enters_a_scope_for_all_threads():
    async def main(run):
        with gpupool.use_mem_pool(pool, all_threads=True):
            await asyncio.sleep(0)
            # Other tasks of the thread have no scope of their own either.
            other = asyncio.create_task(asyncio.sleep(0, by_empty()))
            return run(by_empty), await other, by_empty(), pool.use_count()

    pool = gpupool.MemPool()
    with other_thread() as run:
        assert asyncio.run(main(run)) == (pool.id, pool.id, pool.id, 2)
        assert (run(by_empty), pool.use_count()) == (NONE, 1)


def test_a_scope_for_all_threads_is_not_that_of_an_allocator():
    own = Allocator()

    def malloc(size, device, stream):
        assert gpupool.empty(MIB).pool_id == NONE
        return own.malloc(size, device, stream)

    pool = gpupool.MemPool((malloc, own.free))
    with other_thread() as run, gpupool.use_mem_pool(pool, all_threads=True):
        assert run(gpupool.empty, MIB).pool_id == pool.id
