"""When gpupool can no longer become Numba's memory manager, or cease to be it."""

import sys

import gpupool
from double import live
from enabled import cuda, manager
from errors import assert_says, raised


def not_after_the_first_use():
    gpupool.numba.enable()
    assert gpupool.numba.is_enabled(), "it is not enabled after enable()"
    gpupool.numba.disable()
    assert not gpupool.numba.is_enabled(), "it is enabled after disable()"
    gpupool.numba.disable()
    array = cuda.device_array(10)
    name = type(manager()).__name__
    assert name == "NumbaCUDAMemoryManager", f"disabled, the memory manager is {name}"
    assert live() == 0, "disabled, the array is gpupool's"
    error = raised(gpupool.Error, gpupool.numba.enable)
    assert_says(error, "before the first use of numba.cuda", "numba.cuda.close()")
    gpupool.numba.disable()
    del array


def for_as_long_as_it_is_used():
    array = cuda.device_array(10)
    gpupool.numba.enable()
    error = raised(gpupool.Error, gpupool.numba.disable)
    assert type(error) is gpupool.Error, f"after the first use it is {error!r}"
    del array


def not_with_simulated_memory():
    assert_says(raised(gpupool.RuntimeUnavailable, cuda.device_array, 10), "unset GPUPOOL_RUNTIME")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
