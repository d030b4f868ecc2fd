"""A library's requests for memory: their limits, their scopes, the order of their streams, and many at once."""

import threading

import gpupool
from cudss import MIB, OURS, allocate, at, free, library, live, name_of, other, pool, stream
from double import calls, error_of, fail


def a_limit_or_a_full_device_fails_the_call_and_nothing_else():
    mine = gpupool.MemPool(limit=8 * MIB)
    pool.set_mem_pool(mine)
    handle = pool.handle(stream)
    held = allocate(handle, 6)
    assert allocate(handle, 6) is None, "memory beyond the pool's limit"
    assert live(mine) == 6, "the refusal changed what is live"
    assert free(handle, held, 6) == 0, "after a refusal nothing can be freed"
    held = allocate(handle, 6)
    assert held is not None, "after a refusal nothing can be had"
    assert free(handle, held, 6) == 0, "after a refusal nothing can be freed again"
    mine.limit = None
    assert allocate(handle, 1 << 20) is None, "memory beyond the device"

    # What others of the process do not use helps.
    buffer = gpupool.empty(600 * MIB)
    buffer.free()
    assert allocate(handle, 700) is not None, "memory that others do not use is not given"
    # Without a pool: what the driver says.
    pool.set_mem_pool(None)
    assert allocate(handle, 1 << 20) is None, "the driver gave memory beyond the device"


def the_thread_s_scope_is_neither_used_nor_changed():
    mine, scoped = gpupool.MemPool(), gpupool.MemPool()
    pool.set_mem_pool(mine)
    handle = pool.handle(stream)
    with gpupool.use_mem_pool(scoped):
        address = allocate(handle)
        buffer = gpupool.empty(MIB)
    assert buffer.pool_id == scoped.id, "the library's request changed the thread's scope"
    assert (live(mine), live(scoped)) == (1, 1), "the library's request followed the thread's scope"
    assert gpupool.empty(MIB).pool_id == (0, 0), "the scope did not end"
    free(handle, address)
    assert mine.use_count() == 2, "requests are counted as uses"


def memory_is_freed_in_the_order_of_the_stream_that_frees():
    mine = gpupool.MemPool()
    pool.set_mem_pool(mine)
    handle = pool.handle(stream)
    address = allocate(handle)
    assert free(handle, address) == 0, "the memory could not be freed"
    assert calls("cuEventRecord") == 0, "memory waits for its own stream"
    # On another stream than the memory's own, it waits for that one's work.
    assert allocate(handle) == address, "memory that was freed was not used again"
    assert pool.handle(other) == handle, "the thread has another handle"
    assert free(handle, address) == 0, "the memory could not be freed on another stream"
    assert calls("cuEventRecord") == 1, "memory does not wait for the stream that frees it"
    assert mine.stats().waiting_blocks == 1, "the memory does not wait"
    # The legacy default stream is the handle's device's, whatever device is current.
    with gpupool.stream(gpupool.Stream(1)):
        assert library.cudssSetStream(at(handle), None) == 0, "the stream was refused"
        address = allocate(handle)
        assert address is not None, "no memory on the legacy default stream"
        assert live(mine) == 2, "memory of another device"
        assert free(handle, address) == 0, "the memory could not be freed on the legacy default stream"
        assert live(mine) == 1, "memory that was freed is live"


def threads_take_and_give_at_once_while_it_changes():
    pools = [gpupool.MemPool() for _ in range(3)]
    start, stop, failed = threading.Barrier(5), threading.Event(), []

    def work():
        left = []
        for step in range(200):
            handle = pool.handle()
            left.append(allocate(handle))
            assert left[-1] is not None, "no memory"
            if len(left) > 5:
                assert free(handle, left.pop(step % 5)) == 0, "memory could not be freed"
            if step % 10 == 0:
                with pool.lease() as lease:
                    assert free(lease, allocate(lease)) == 0, "memory of a lease could not be freed"
        for address in left:
            assert free(handle, address) == 0, "memory could not be freed at the end"

    def run():
        start.wait()
        try:
            # The double takes plain memory of the current device.
            with gpupool.stream(gpupool.Stream(0)):
                work()
        except BaseException as error:
            failed.append(error)

    def change():
        start.wait()
        while not stop.is_set():
            for mem_pool in (*pools, None):
                pool.set_mem_pool(mem_pool)

    threads = [threading.Thread(target=run) for _ in range(4)]
    changing = threading.Thread(target=change)
    for thread in (*threads, changing):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    changing.join()
    assert not failed, f"threads failed: {failed}"
    stats = gpupool.memory_stats()
    assert stats.live_blocks - stats.waiting_blocks == 0, f"memory is left: {stats}"
    pool.set_mem_pool(None)
    uses = [mem_pool.use_count() for mem_pool in pools]
    assert uses == [1, 1, 1], f"pools that no library takes from have {uses} uses"


def a_refusal_names_the_function_and_loses_no_handle():
    mine = gpupool.MemPool()
    pool.set_mem_pool(mine)
    fail("cudssSetDeviceMemHandler=4")
    for ask in (pool.handle, pool.lease, pool.handle):
        error = error_of(ask, stream)
        assert "cudssSetDeviceMemHandler" in error, f"the function is not named: {error}"
        assert "CUDSS_STATUS_NOT_SUPPORTED" in error, f"the status is not named: {error}"
    fail()
    assert name_of(pool.handle(stream)) == OURS, "after a refusal the handle does not take it"
    stats = pool.stats()
    assert (stats.failures, stats.created) == (3, 1), f"a refusal lost a handle: {stats}"


def arguments_that_cannot_be_right():
    mine = gpupool.MemPool(device=1)
    for error, said in [
        (error_of(pool.set_mem_pool, mine, device=0), "memory of device 1, which handles on device 0 cannot take"),
        (error_of(pool.set_mem_pool, 3), "takes a MemPool or its token(), not 3"),
        (error_of(pool.set_mem_pool, None, device=7), "InvalidValue"),
    ]:
        assert said in error, f"instead of {said!r}: {error}"
    pool.set_mem_pool(mine, device=1)
    assert mine.use_count() == 2, "the library does not use the pool"
    pool.set_mem_pool(None, device=0)
    assert mine.use_count() == 2, "device 0 without a pool took it from device 1"
    pool.set_mem_pool(None)
    assert mine.use_count() == 1, "the library uses the pool still"
