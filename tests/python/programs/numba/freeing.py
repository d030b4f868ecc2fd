"""When what Numba's arrays leave is freed: before memory runs out, and behind as few fences as can be."""

import sys

import gpupool
from cuda.bindings import driver as bindings
from double import MIB, calls, live
from enabled import CudaAPIError, bytes_array, cuda, manager
from errors import assert_says, raised


def waiting():
    """Return how many allocations Numba has yet to free, by its own list."""
    return len(manager().deallocations)


def comes_before_memory_runs_out():
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


def comes_behind_one_fence_when_there_is_enough_of_it():
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


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
