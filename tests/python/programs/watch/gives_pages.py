"""What gpupool gives back besides free memory, which only virtual memory has. The device has 1024 MiB."""

import threading

import gpupool
from double import MIB
from other import OUT_OF_MEMORY, cache, reserved_mib, take, use_device


def discardable_pages_go():
    use_device(0)
    pool = gpupool.MemPool()
    pages = pool.reserve_range(600 * MIB)
    pages.commit(0, 600 * MIB, gpupool.Stream(), priority=1)
    pages.pin(range(100))
    gpupool.synchronize()
    discarded = []
    kept = pages.on_discard(discarded.extend)
    assert take(600) == 0, "the call failed though pages are discardable"
    # The program is told by the range's next call, on its own thread.
    assert not discarded
    pages.prepare(0)
    assert discarded
    assert min(discarded) >= 100, "a pinned page was taken"
    assert reserved_mib() >= 200
    assert take(600) == OUT_OF_MEMORY, "pinned pages were taken"
    del kept


def a_pool_that_sleeps_for_others_does():
    use_device(0)
    pool = gpupool.MemPool(sleeps_for_others=True)
    buffer = pool.empty(600 * MIB, gpupool.Stream())
    gpupool.synchronize()
    assert take(600) == 0, "the call failed though a pool sleeps for others"
    assert pool.is_asleep
    assert buffer.nbytes == 600 * MIB


def a_pool_in_use_stays_awake():
    use_device(0)
    pool = gpupool.MemPool(sleeps_for_others=True)
    with gpupool.use_mem_pool(pool):
        buffer = gpupool.empty(600 * MIB, gpupool.Stream())
        gpupool.synchronize()
        assert take(600) == OUT_OF_MEMORY, "a pool in use sleeps"
    assert not pool.is_asleep
    assert buffer.nbytes == 600 * MIB


def a_reserve_is_kept():
    use_device(0)
    pool = gpupool.MemPool(reserve=600 * MIB)
    assert (take(600), reserved_mib()) == (OUT_OF_MEMORY, 600)
    assert pool.stats().reserved_bytes == 600 * MIB


def on_every_thread():
    cache(800)

    def takes():
        use_device(0)
        return [take(10) for _ in range(10)]

    found = []
    threads = [threading.Thread(target=lambda: found.append(takes())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[0] * 10] * 8, f"a call failed though gpupool had memory free: {found}"
