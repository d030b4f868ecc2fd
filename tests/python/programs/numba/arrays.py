"""Numba's arrays are gpupool's memory: of which pool, device and graph, and when what they leave is freed."""

import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import gpupool
import numpy as np
from cuda.bindings import driver as bindings
from double import MIB, calls, is_capturing, live, set_capture
from enabled import CudaAPIError, address_of, bytes_array, cuda, manager
from errors import assert_says, raised
from forking import exit_code_of


def waiting():
    """Return how many allocations Numba has yet to free, by its own list."""
    return len(manager().deallocations)


def live_until_they_and_their_views_die():
    array = cuda.to_device(np.arange(1000.0))
    assert live() == 1, "the array is not gpupool's"
    requested = gpupool.memory_stats().requested_bytes
    assert requested == 8000, f"{requested} bytes were asked for"
    assert (array.copy_to_host() == np.arange(1000.0)).all(), "the array has other values"
    assert address_of(array) % 512 == 0, f"{address_of(array):#x} is not aligned"
    view = array[10:20]
    del array
    assert live() == 1, "the memory went though a view has it"
    assert (view.copy_to_host() == np.arange(10.0, 20.0)).all(), "the view has other values"
    del view
    assert (live(), waiting()) == (1, 1), "the memory is not in Numba's own list of what waits to be freed"
    manager().deallocations.clear()
    assert (live(), waiting()) == (0, 0), "what Numba freed is alive"
    assert cuda.device_array(0).size == 0, "an empty array has elements"
    assert live() == 0, "an empty array takes memory"


def are_of_the_pool_in_scope():
    pool, other = gpupool.MemPool(), gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        inside = bytes_array(MIB)
        with gpupool.numba.using(other):
            innermost = bytes_array(MIB)
    outside = bytes_array(MIB)
    found = [each.stats().live_blocks for each in (pool, other)]
    assert found == [1, 1], f"the pools have {found} blocks, not one each"
    assert live() == 3, "there are other blocks than three"

    def work(_):
        with gpupool.use_mem_pool(pool.token()):
            return bytes_array(MIB)

    with ThreadPoolExecutor(4) as executor:
        arrays = list(executor.map(work, range(8)))
    found = pool.stats().live_blocks
    assert found == 9, f"with eight arrays of threads the pool has {found} blocks"
    del inside, innermost, outside, arrays


def in_a_loop_take_no_more_memory_than_they_need():
    # One dies when the next is there.
    array = None
    for _ in range(100):
        array = bytes_array(20 * MIB)
    peak = gpupool.memory_stats().peak_reserved_bytes
    assert peak <= 42 * MIB, f"the loop took {peak} bytes"
    del array


def leave_captures_alone():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    array = bytes_array(4 * MIB)
    set_capture(stream.ptr, 1)
    with pool.capture(stream) as memory:
        graphs = bytes_array(4 * MIB)
        del array, graphs
        arrays = [bytes_array(MIB) for _ in range(20)]
        manager().deallocations.clear()
        arrays.clear()
    assert is_capturing(stream.ptr), "an array spoilt the capture"
    assert calls("cuCtxRecordEvent") == 0, "a fence was put into the capture"
    assert pool.stats().live_blocks == 21, "the graph has not all of its 21 blocks"
    assert live() == 22, "an array was freed during the capture"
    set_capture(stream.ptr, 0)
    array = bytes_array(4 * MIB)
    assert live() == 1, "after the capture what had died was not freed"
    assert calls("cuCtxRecordEvent") > 0, "after the capture there was no fence"
    memory.reset()
    pool.trim()
    assert pool.stats().reserved_bytes == 0, "the graph's memory is left"
    del array


def that_are_cached_count_as_free():
    array = bytes_array(10 * MIB)
    free, total = cuda.current_context().get_memory_info()
    assert total == 1024 * MIB, f"the device has {total} bytes"
    assert free == total - 10 * MIB, f"with 10 MiB in use {free} of {total} bytes are free"
    del array
    manager().deallocations.clear()
    free = cuda.current_context().get_memory_info().free
    assert free == total, f"with nothing in use {free} of {total} bytes are free"


def of_threads_do_not_mix():
    def work(number):
        arrays = []
        for step in range(50):
            arrays.append(cuda.to_device(np.full(1000 + 3 * step, number)))
            if step % 3 == 0:
                arrays.pop(0)
        return all((array.copy_to_host() == number).all() for array in arrays)

    with ThreadPoolExecutor(16) as executor:
        assert all(executor.map(work, range(32))), "arrays of threads overlap"
    manager().deallocations.clear()
    assert live() == 0, "arrays of threads are alive"


def are_of_the_current_device():
    with cuda.gpus[1]:
        array = bytes_array(MIB)
    found = live(), gpupool.memory_stats(1).live_blocks
    assert found == (0, 1), f"devices 0 and 1 have {found} blocks"
    assert gpupool.current_device() == 0, "device 1 stayed current"
    del array


def are_freed_before_memory_runs_out():
    array = bytes_array(10 * MIB)
    error = raised(CudaAPIError, bytes_array, 60 * MIB)
    del array
    assert error.code == bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY, f"the error's code is {error.code}"
    assert_says(error, "default memory pool")
    assert isinstance(error.__cause__, gpupool.OutOfMemory), f"the error's cause is {error.__cause__!r}"
    manager().deallocations.clear()
    array = bytes_array(40 * MIB)
    del array
    assert waiting() == 1, "an array that died was freed at once"
    array = bytes_array(42 * MIB)
    del array
    assert waiting() == 1, "before memory ran out what had died was not freed"
    # Somebody else needs the memory.
    buffer = gpupool.empty(50 * MIB)
    assert waiting() == 0, "what had died was not freed for somebody else"
    del buffer
    with cuda.defer_cleanup():
        array = bytes_array(40 * MIB)
        del array
        raised(CudaAPIError, bytes_array, 41 * MIB)
        assert waiting() == 1, "an array was freed though the program put that off"
    array = bytes_array(41 * MIB)
    del array


def are_freed_behind_one_fence_when_there_is_enough_of_it():
    def assert_fences(fences, blocks):
        found = calls("cuCtxRecordEvent"), live()
        assert found == (fences, blocks), f"fences and blocks: {found}, not {(fences, blocks)}"

    arrays = [bytes_array(MIB // 4) for _ in range(7)]
    arrays.clear()
    array = bytes_array(1000)
    assert_fences(0, 8)
    del array
    array = bytes_array(MIB)
    del array
    array = bytes_array(MIB)
    assert_fences(1, 1)
    # Less than what is asked for is not worth a fence, and eleven of the smallest are.
    del array
    array = bytes_array(8 * MIB)
    assert calls("cuCtxRecordEvent") == 1, "there was a fence for less than what was asked for"
    arrays = [bytes_array(1000) for _ in range(11)]
    arrays.clear()
    assert_fences(2, 2)
    del array


def of_a_parent_are_not_freed_by_a_forked_child():
    # Python warns of forks in processes with threads, of which OpenBLAS has some.
    warnings.simplefilter("ignore")
    arrays = [bytes_array(4 * MIB) for _ in range(20)]
    child = os.fork()
    if child == 0:
        arrays.clear()
        sys.exit()
    assert exit_code_of(child) == 0, "the child failed"
    assert live() == 20, "the child freed its parent's arrays"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
