"""Memory that a library took goes back to where it came from, whatever became of handles, pools and streams since."""

import atexit
import ctypes
import os

import gpupool
from cudss import MIB, allocate, at, free, handler_of, keep, library, live, other, pool, stream, used
from double import error_of
from forking import exit_code_of
from waiting import in_thread

# What is held as the process ends.
held = []


def memory_goes_back_to_where_it_came_from_whenever_it_changes():
    handle = pool.handle(stream)
    start = used()
    plain = [allocate(handle) for _ in range(3)]
    assert used() == start + 3, "the library's own memory is not the driver's"

    one, two = gpupool.MemPool(), gpupool.MemPool()
    mixed = []
    for mem_pool in (one, two, one, None, two, None):
        pool.set_mem_pool(mem_pool)
        assert pool.handle(stream) == handle, "the thread has another handle"
        mixed.append(allocate(handle))
    assert (live(one), live(two)) == (2, 2), f"the pools have {live(one)} and {live(two)} MiB, not 2 each"
    assert None not in mixed, "the library got no memory"
    # The driver's own memory, some from before gpupool was there and some from after.
    assert [free(handle, address) for address in plain] == [0] * 3, "the driver's memory cannot be freed"
    assert [free(handle, address) for address in mixed] == [0] * 6, "memory from before a change cannot be freed"
    assert (live(one), live(two)) == (0, 0), "memory went back elsewhere"
    one.trim()
    two.trim()
    assert used() == start, "memory did not go back to the driver"


def an_object_can_free_by_the_handler_it_was_made_with_for_ever():
    mine = gpupool.MemPool()
    pool.set_mem_pool(mine)
    with pool.lease(stream) as handle:
        handler = handler_of(handle)
        place = at()
        status = handler.allocate(handler.context, ctypes.byref(place), 5 * MIB, at(stream.ptr))
        assert status == 0, f"the handler's allocate answered {status}"
    pool.set_mem_pool(None)
    with pool.lease(stream) as handle:
        pass
    pool.trim()
    assert live(mine) == 5, f"{live(mine)} MiB of 5 are live"
    # Nobody else has the pool; its live memory stays.
    del mine
    assert gpupool.memory_stats().live_bytes == 5 * MIB, "live memory went with its pool"
    status = handler.free(handler.context, place, 5 * MIB, at(other.ptr))
    assert status == 0, f"the handler's free answered {status}"
    gpupool.empty_cache()
    stats = gpupool.memory_stats()
    assert (stats.reserved_bytes, stats.pools) == (0, 1), f"the pool is left: {stats}"


def a_pool_is_kept_as_long_as_a_library_takes_from_it():
    mine = gpupool.MemPool()
    number, token = mine.id, mine.token()
    pool.set_mem_pool(token)
    assert mine.use_count() == 2, f"a library that takes from it counts as {mine.use_count() - 1} uses"
    pool.set_mem_pool(mine)
    assert mine.use_count() == 2, "the same pool once more is another use"
    del mine
    handle = pool.handle(stream)
    address = allocate(handle)
    assert gpupool.torch.pool_use_count(0, number) == 1, "the library does not keep the pool"
    pool.set_mem_pool(None)
    # The last use is over: what is alive stays, what is freed goes.
    assert gpupool.memory_stats().live_bytes == MIB, "live memory went with its pool"
    assert free(handle, address) == 0, "memory of a pool that is gone cannot be freed"
    gpupool.empty_cache()
    assert gpupool.memory_stats().reserved_bytes == 0, "memory of a pool that is gone is left"
    error = error_of(pool.set_mem_pool, token)
    assert error.startswith("InvalidValue "), f"a pool that is gone: {error}"
    assert "was dropped" in error, f"a pool that is gone: {error}"


def threads_that_end_leave_their_memory_and_their_handles():
    mine = gpupool.MemPool()
    pool.set_mem_pool(mine)

    def take():
        handle = pool.handle(stream)
        return handle, allocate(handle)

    handle, address = in_thread(take)
    assert live(mine) == 1, "memory went with its thread"
    assert pool.stats().idle == 1, "the thread's handle did not come back"
    with pool.lease(stream) as lease:
        assert int(lease) == handle, "the thread's handle is not lent"
        assert free(lease, address) == 0, "the thread's memory cannot be freed"
    assert pool.trim() == 1, "the thread's handle was not destroyed"
    assert live(mine) == 0, "the thread's memory is left"


def a_handle_that_is_destroyed_gives_its_own_back_though_its_stream_is_gone(then):
    """Destroy it while the library is told of the pool still, or of none."""
    mine = gpupool.MemPool()
    start, last = used(), gpupool.Stream(0)
    with pool.lease(stream) as handle:
        plain = int(handle)
        keep(handle)
    pool.set_mem_pool(mine)
    with pool.lease(stream) as first, pool.lease(stream) as second:
        assert plain in (int(first), int(second)), "the handle was not lent again"
        assert live(mine) == 0, "the pool has memory of the library's own"
        for handle in (first, second):
            if int(handle) != plain:
                keep(handle)
            assert library.cudssSetStream(at(int(handle)), at(last.ptr)) == 0, "the stream was refused"
    assert live(mine) == 1, f"{live(mine)} MiB of 1 are live"
    del last
    pool.set_mem_pool({"none": None, "pool": mine}[then])
    assert pool.trim() == 2, "trim did not destroy both handles"
    gpupool.empty_cache()
    assert live(mine) == 0, "a destroyed handle left memory in the pool"
    assert used() == start, "a destroyed handle left memory"


def a_handle_is_used_as_the_process_ends():
    mine = gpupool.MemPool()
    pool.set_mem_pool(mine)
    handle = pool.handle(stream)
    address = allocate(handle)
    held.append(mine)

    def use():
        print("frees", free(handle, address) == 0)
        print("allocates", allocate(handle) is not None)

    atexit.register(use)


def a_forked_child_gets_a_status():
    mine = gpupool.MemPool()
    pool.set_mem_pool(mine)
    handle = pool.handle(stream)
    address = allocate(handle)
    child = os.fork()
    if child == 0:
        assert free(handle, address) != 0, "a child freed its parent's memory"
        assert allocate(handle) is None, "a child got memory"
        os._exit(0)
    assert exit_code_of(child) == 0, "the child failed"
