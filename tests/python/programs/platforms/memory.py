"""Device memory from a platform's driver: what can be done with it, what is told where there is none."""

import ctypes
import os
import sys

import gpupool
from double import MIB, calls, driver, error_of, fail
from waiting import in_thread, wait_until

RUNTIME = gpupool.runtime()
INVALID, OUT_OF_MEMORY = {
    "cuda": ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_OUT_OF_MEMORY"),
    "hip": ("hipErrorInvalidValue", "hipErrorOutOfMemory"),
}[RUNTIME]
# What makes and ends a stream, and what takes memory without and with virtual memory.
CREATE, DESTROY, ALLOCATE = {
    "cuda": ("cuStreamCreate", "cuStreamDestroy_v2", "cuMemAlloc_v2"),
    "hip": ("hipStreamCreateWithFlags", "hipStreamDestroy", "hipMalloc"),
}[RUNTIME]
VIRTUAL = [f"{RUNTIME.replace('cuda', 'cu')}Mem{call}" for call in ("Create", "Map", "SetAccess", "Unmap", "Release")]
# What a pool does that sleeps and wakes.
ASLEEP = {
    "cuda": ["cuCtxSynchronize", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"],
    "hip": ["hipDeviceSynchronize", "hipMemcpyDtoHAsync", "hipMemcpyHtoDAsync"],
}[RUNTIME]
has_pages = os.environ["FAKE_VMM"] == "1"


def fill(buffer, number):
    """Write a byte all over a buffer."""
    ctypes.memset(buffer.ptr, number, buffer.nbytes)


def is_full_of(buffer, number):
    """Return whether that byte is there still."""
    return ctypes.string_at(buffer.ptr, buffer.nbytes) == bytes([number]) * buffer.nbytes


def write_on(device):
    """Return whether buffers of many sizes can be written, each apart from the others."""
    stream = gpupool.Stream(device)
    buffers = [gpupool.empty(nbytes, stream) for nbytes in (1, 512, 70_000, 3 * MIB, 20 * MIB)]
    for number, buffer in enumerate(buffers):
        fill(buffer, number)
    return all(is_full_of(buffer, number) for number, buffer in enumerate(buffers))


def it_can_be_written_and_comes_back():
    assert write_on(0), "buffers of device 0 overlap"
    assert write_on(1), "buffers of device 1 overlap"
    assert in_thread(write_on, 1), "buffers of a thread overlap"
    assert gpupool.current_device() == 0, "memory of device 1 left it current"
    assert driver.double_used(0) > 23 * MIB, "less memory was taken than was written"
    assert gpupool.memory_stats(0).reserved_bytes == driver.double_used(0), "the driver counts other memory as reserved"
    gpupool.empty_cache()
    left = driver.double_used(0), driver.double_used(1), gpupool.memory_stats().reserved_bytes
    assert left == (0, 0, 0), f"empty_cache left {left}"


def it_sleeps_and_wakes():
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        buffers = [gpupool.empty(nbytes) for nbytes in (1, 70_000, 3 * MIB, 20 * MIB)]
    for number, buffer in enumerate(buffers):
        fill(buffer, number + 1)
    addresses = [buffer.ptr for buffer in buffers]
    before = driver.double_used(0)
    assert pool.sleep() == before, "not all memory went"
    assert (driver.double_used(0), pool.is_asleep) == (0, True), "memory is left while the pool sleeps"
    with gpupool.use_mem_pool(pool):
        error = error_of(gpupool.empty, MIB)
    assert error.startswith("Asleep memory pool "), f"a request of a pool that is asleep: {error}"
    pool.wake()
    assert driver.double_used(0) > 23 * MIB, "memory was not taken again"
    assert [buffer.ptr for buffer in buffers] == addresses, "an address changed"
    wrong = [number for number, buffer in enumerate(buffers) if not is_full_of(buffer, number + 1)]
    assert not wrong, f"blocks {wrong} hold something else"
    gpupool.sleep(backup=None)
    assert driver.double_used(0) == 0, "the device's sleep left memory"
    gpupool.wake()
    del pool, buffers, buffer
    gpupool.empty_cache()
    assert driver.double_used(0) == 0, "memory is left"
    # Pinned segments go on a thread of their own.
    wait_until(lambda: driver.double_used_of_host() == 0, "the backup is given back")


def without_virtual_memory_it_does_not_sleep():
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        buffer = gpupool.empty(MIB)
    error = error_of(pool.sleep)
    assert error.startswith("Unavailable pool "), error
    assert "virtual memory management" in error, error
    assert not pool.is_asleep, "the pool sleeps all the same"
    fill(buffer, 1)


def nothing_is_lost_asleep():
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        buffer = gpupool.empty(20 * MIB)
    fill(buffer, 7)
    for function in (*VIRTUAL, *ASLEEP, CREATE):
        for change in (pool.sleep, pool.wake):
            fail(f"{function}=1")
            error = error_of(change)
            fail("")
            assert "no error" in error or INVALID in error, f"{function} in {change.__name__}: {error}"
            if "no error" not in error:
                expected = change == pool.wake
                assert pool.is_asleep == expected, f"{function} in {change.__name__} left the pool in between"
                change()
        assert is_full_of(buffer, 7), f"{function} lost the content"


def pools_keep_theirs_apart():
    pool = gpupool.MemPool(limit=64 * MIB)
    with gpupool.use_mem_pool(pool):
        inside = gpupool.empty(5 * MIB)
        with gpupool.use_mem_pool(gpupool.MemPool()) as inner:
            innermost = gpupool.empty(MIB)
    outside = gpupool.empty(MIB)
    pools = inside.pool_id, innermost.pool_id, outside.pool_id
    assert pools == (pool.id, inner.id, (0, 0)), f"buffers are of the pools {pools}"
    assert pool.use_count() == 1, "a scope that ended still uses its pool"
    with gpupool.use_mem_pool(pool):
        error = error_of(gpupool.empty, 100 * MIB)
    assert error.split(":")[0] == "OutOfMemory out of memory on device 0", f"beyond the limit: {error}"
    inside.free()
    assert pool.trim() >= 5 * MIB, "trim did not give the pool's memory back"
    assert pool.stats().reserved_bytes == 0, "trim left memory in the pool"
    assert outside.nbytes == MIB, "another pool's buffer changed"
    fill(innermost, 1)
    del pool, inner, innermost, outside
    gpupool.empty_cache()
    assert driver.double_used(0) == 0, "memory of pools that are gone is left"


def that_runs_out_is_told():
    held = gpupool.empty(600 * MIB)
    error = error_of(gpupool.empty, 600 * MIB)
    said = "OutOfMemory out of memory on device 0: tried to allocate 600.0 MiB"
    assert error.startswith(said), f"out of memory is told as: {error}"
    function = VIRTUAL[0] if has_pages else ALLOCATE
    said = f"{RUNTIME}: {function.removesuffix('_v2')} failed with {OUT_OF_MEMORY} (2) on device 0"
    assert said in error, f"the driver's failure is not told: {error}"
    del held
    assert gpupool.empty(600 * MIB).nbytes == 600 * MIB, "memory that was freed cannot be had"


def free_pages_move_to_where_they_are_needed():
    stream = gpupool.Stream()
    blocks = [gpupool.empty(8 * MIB, stream) for _ in range(40)]
    for number, block in enumerate(blocks):
        fill(block, number)
    kept, blocks = dict(list(enumerate(blocks))[::2]), None
    large = gpupool.empty(100 * MIB, stream)
    fill(large, 255)
    assert all(is_full_of(block, number) for number, block in kept.items()), "a page moved away from a block in use"
    assert gpupool.memory_stats().moved_pages >= 50, "free pages did not move"
    assert driver.double_used(0) < 350 * MIB, "new pages were taken though there were free ones"
    del large, kept, block
    gpupool.empty_cache()
    assert driver.double_used(0) == 0, "empty_cache left moved pages"


def of_a_stream_that_is_gone_comes_back():
    stream = ctypes.c_void_p()
    with gpupool.stream(gpupool.Stream(1)):
        assert driver[CREATE](ctypes.byref(stream), 1) == 0, "the double made no stream"
    gpupool.empty(5 * MIB, stream.value).free()
    assert driver[DESTROY](stream) == 0, "the double kept the stream"
    gpupool.empty_cache()
    assert driver.double_used(1) == 0, "memory of a stream that is gone is left"


def nothing_is_lost_when_the_driver_refuses():
    gpupool.empty(1).free()
    for function in VIRTUAL if has_pages else [ALLOCATE]:
        for times in (1, 1000):
            fail(f"{function}=1:{calls(function) + times}")
            error = error_of(gpupool.empty, 30 * MIB), error_of(gpupool.empty_cache)
            fail()
            if times == 1000:
                said = f"{RUNTIME}: {function.removesuffix('_v2')} failed with {INVALID} (1) on device 0"
                assert any(said in each for each in error), f"{function} refused, and what is told is: {error}"
            gpupool.empty(30 * MIB).free()
            gpupool.empty_cache()
            assert driver.double_used(0) == 0, f"memory was lost when {function} refused {times} times"


def a_second_device_gets_access():
    buffer = gpupool.empty(3 * MIB, gpupool.Stream(0))
    gpupool.enable_peer_access(0, 1)
    gpupool.empty(30 * MIB, gpupool.Stream(0))
    other = gpupool.Stream(1)
    buffer.record_stream(other)
    del buffer


def a_driver_with_fewer_addresses_gives_what_it_has():
    fill(gpupool.empty(30 * MIB), 1)
    assert calls(VIRTUAL[1]) > 0, "no pages were mapped though there are addresses"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
