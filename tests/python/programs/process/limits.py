"""What the system, or a table of a fixed size, has no more of is `Unavailable`; memory and addresses, `OutOfMemory`."""

import resource

import gpupool
from errors import assert_says, assert_starts, raised
from waiting import wait_until


def none():
    assert gpupool.device_count() >= 1, "there is no device"


def of_addresses():
    """Give the process no address more than it has."""
    stream = gpupool.Stream()
    with open("/proc/self/statm") as told:
        has = int(told.read().split()[0]) * resource.getpagesize()
    former = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (has, former[1]))
    requests = [
        raised(gpupool.OutOfMemory, gpupool.empty, 1000, stream),
        raised(gpupool.OutOfMemory, gpupool.MemPool),
        raised(gpupool.OutOfMemory, gpupool.memory_stats),
    ]
    resource.setrlimit(resource.RLIMIT_AS, former)
    for error in requests:
        assert_says(error, "out of memory on device 0: tried to reserve ", "addresses", "ulimit -v")
        assert error.requested_bytes >= error.total_bytes > 0, "the bytes are not those of the device"
    assert gpupool.empty(1000, stream).nbytes == 1000, "the lack outlives the limit"


def of_a_thread_for_ready_pages():
    """Give the process no address for a thread's stack, and see that what was refused is not made later."""
    page = 2 << 20
    stream = gpupool.Stream()
    pool, other = gpupool.MemPool(), gpupool.MemPool()
    refused, served, last = (of.reserve_range(8 * page) for of in (pool, pool, other))
    refused.commit([7], stream)
    with open("/proc/self/statm") as told:
        has = int(told.read().split()[0]) * resource.getpagesize()
    former = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (has + (1 << 20), former[1]))
    error = raised(gpupool.Unavailable, refused.prepare, 4)
    resource.setrlimit(resource.RLIMIT_AS, former)
    assert_starts(error, "the system starts no thread that makes pages ready")
    served.prepare(1)
    # One range after the other is served.
    last.prepare(1)
    wait_until(lambda: other.stats().cached_bytes == page, "the last range has its page")
    assert pool.stats().cached_bytes == page, "pages are made that were refused"


def of_few_addresses(gibibytes):
    """Give the process few addresses. The device leaves at least as many as it takes."""
    limit = int(gibibytes) << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    stream = gpupool.Stream()
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        buffer = gpupool.empty(5 << 20, stream)
    buffer.fill(7)
    with open("/proc/self/statm") as told:
        has = int(told.read().split()[0]) * resource.getpagesize()
    assert has < limit * 3 // 4, f"{has} bytes of {limit} are taken"
    pool.sleep()
    pool.wake()
    assert set(bytes(buffer)) == {7}, "the pool has not woken as it was"
    assert gpupool.empty_pinned(3 << 20, stream).nbytes == 3 << 20, "there is no pinned memory"


def of_extents():
    """Refuse the number in ``GPUPOOL_EXTENT_PAGES`` where memory is first asked for."""
    error = raised(gpupool.InvalidValue, gpupool.empty, 1000)
    assert_says(error, "GPUPOOL_EXTENT_PAGES=", "is not")


def of_pools():
    def make_pools():
        for _ in range(300):
            gpupool.HandlePool("loop", lambda: 1, lambda handle: None)

    assert_starts(raised(gpupool.Unavailable, make_pools), "a process can have 256 handle pools")
    assert not issubclass(gpupool.Unavailable, ValueError), "what the system lacks counts as the caller's mistake"


def of_threads():
    """Run this with RUST_MIN_STACK so large that no thread starts."""
    error = raised(gpupool.Unavailable, gpupool.simulated.warm, 1, background=True)
    assert_starts(error, "no thread could be started to warm the simulated pool")
