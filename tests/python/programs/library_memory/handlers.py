"""Which handles take their memory from a pool: each that is given out, whatever its last owner set."""

import threading

import gpupool
from cudss import MIB, OURS, allocate, at, free, live, name_of, names_of, other, pool, set_handler, stream
from double import error_of
from waiting import wait_for_end


def memory_is_counted_and_used_again():
    mine = gpupool.MemPool()
    pool.set_mem_pool(mine)
    assert pool.get_mem_pool().id == mine.id, f"the handles' pool is {pool.get_mem_pool()}"
    handle = pool.handle(stream)
    assert name_of(handle) == OURS, f"the handle's handler is {name_of(handle)}"
    before = gpupool.memory_stats().live_bytes
    first = allocate(handle, 3)
    assert live(mine) == 3, f"{live(mine)} MiB of 3 are counted"
    assert gpupool.memory_stats().live_bytes - before == 3 * MIB, "the device counts other bytes than the pool"
    assert free(handle, first, 3) == 0, "the memory could not be freed"
    assert live(mine) == 0, "memory that was freed is counted"
    assert allocate(handle, 3) == first, "memory that was freed was not used again"
    assert mine.stats().allocations == 2, "two allocations are not counted as two"
    assert free(handle, first, 3) == 0, "the memory could not be freed again"
    assert mine.trim() > 0, "trim gave nothing back"
    assert mine.stats().reserved_bytes == 0, "trim left memory"


def those_of_threads_leases_and_new_ones_take_it():
    old = pool.handle(stream)
    waiting, go = threading.Barrier(2), threading.Barrier(2)
    results = []

    def hold():
        handle = pool.handle(other)
        waiting.wait()
        go.wait()
        own = name_of(handle), pool.handle(other) == handle, name_of(handle)
        address = allocate(handle)
        results.append((*own, free(handle, address)))

    thread = threading.Thread(target=hold)
    thread.start()
    waiting.wait()
    with pool.lease(stream):
        pass
    idle, lent = pool.lease(stream), pool.lease(other)
    idle.release()
    assert names_of(old, lent) == [None, None], "handles take gpupool's memory unasked"

    mine = gpupool.MemPool()
    pool.set_mem_pool(mine)
    # They go on as they are until they are asked for.
    assert names_of(old, lent) == [None, None], "handles in use were changed"
    go.wait()
    wait_for_end(thread)
    assert results == [(None, True, OURS, 0)], f"the thread's handle, before and after it was asked for: {results}"
    assert pool.handle(stream) == old, "this thread has another handle"
    assert name_of(old) == OURS, "this thread's handle does not take it"
    lent.release()
    created = pool.stats().created
    with pool.lease(stream) as near, pool.lease(other) as far, pool.lease(other) as third, pool.lease(other) as new:
        assert pool.stats().created == created + 1, "of four leases one should need a new handle"
        assert names_of(near, far, third, new) == [OURS] * 4, "a lease does not take it"
    pool.trim()
    pool.warm(1, 0)
    with pool.lease(stream) as warm:
        assert pool.stats().created == created + 2, "the handle made in advance was not lent"
        assert name_of(warm) == OURS, "a handle made in advance does not take it"
    assert name_of(pool.handle(device=1)) is None, "a handle of another device takes it"


def what_an_owner_sets_is_gone_at_the_next():
    mine = gpupool.MemPool()
    pool.set_mem_pool(mine)
    for owns in (lambda: pool.lease(stream), lambda: pool.lease(other)):
        with owns() as handle:
            assert name_of(handle) == OURS, "what the last owner set is there"
            set_handler(handle, None)
            set_handler(handle, at(gpupool.c_api.handler))
            assert name_of(handle) == "gpupool", "an owner cannot set a handler"
    with pool.lease(stream) as handle:
        assert name_of(handle) == OURS, "what the last owner set is there"


def what_an_owner_has_set_is_taken_off_first():
    handle = pool.handle(stream)
    set_handler(handle, at(gpupool.c_api.handler))
    address = allocate(handle)
    mine = gpupool.MemPool()
    pool.set_mem_pool(mine)
    # The library refuses it as long as there is memory from the owner's handler.
    error = error_of(pool.handle, stream)
    assert "cudssSetDeviceMemHandler failed with CUDSS_STATUS_NOT_SUPPORTED" in error, f"the call is not named: {error}"
    assert "destroy the objects that have memory from it first" in error, f"what mends it is not told: {error}"
    assert name_of(handle) == "gpupool", "the owner's handler is gone, though there is memory from it"
    assert free(handle, address) == 0, "memory from the owner's handler cannot be freed"
    assert pool.handle(stream) == handle, "the thread has another handle"
    assert name_of(handle) == OURS, "what the owner set is there"


def one_that_has_memory_of_a_pool_can_give_it_back_ever_after():
    mine = gpupool.MemPool()
    pool.set_mem_pool(mine)
    with pool.lease(stream) as handle:
        told, address = int(handle), allocate(handle)
    pool.set_mem_pool(None)
    assert pool.get_mem_pool() is None, "there is a pool after it was taken away"
    for _ in range(2):
        with pool.lease(stream) as first, pool.lease(other) as second:
            names = {int(lease): name_of(lease) for lease in (first, second)}
            assert len(names) == 2, "two leases have one handle"
            assert names.pop(told) == OURS, "the handle that has memory lost its handler"
            assert list(names.values()) == [None], "the other is not as if nothing had been"
            assert free(told, allocate(told)) == 0, "the handle that has memory cannot take and give more"
            assert live(mine) == 1, f"{live(mine)} MiB of 1 are live"
        pool.set_mem_pool(mine)
        pool.set_mem_pool(None)
    with pool.lease(stream), pool.lease(other):
        assert free(told, address) == 0, "the memory cannot be given back"
        assert live(mine) == 0, "memory that was given back is live"


def without_it_the_next_owner_gets_the_library_s_own():
    with pool.lease(stream) as handle:
        set_handler(handle, at(gpupool.c_api.handler))
    with pool.lease(stream) as handle:
        assert name_of(handle) is None, "what the last owner set is there"
    pool.set_mem_pool(None)
    with pool.lease(stream) as handle:
        assert name_of(handle) is None, "setting no pool set a handler"
