"""When gpupool becomes Numba's memory manager: numba.cuda is imported, or used first, once that is decided."""

import importlib
import sys

import gpupool
from double import live
from errors import assert_says, raised


def imported():
    return importlib.import_module("numba.cuda")


def manager():
    """Return the class of what numba.cuda allocates with."""
    return type(imported().current_context().memory_manager)


def by_its_name_in_the_environment():
    array = imported().device_array(10)
    assert manager().__module__ == "gpupool._frameworks.numba_manager", f"the memory manager is {manager()}"
    assert live() == 1, "the array is not gpupool's"
    del array


def by_using():
    pool = gpupool.MemPool()
    with gpupool.numba.using(pool):
        array = imported().device_array(1000)
    requested = pool.stats().requested_bytes
    assert requested == 8000, f"{requested} bytes of the pool were asked for"
    del array


def not_after_the_first_use():
    for _ in range(2):
        gpupool.numba.enable()
        assert gpupool.numba.is_enabled(), "it is not enabled after enable()"
    for _ in range(2):
        gpupool.numba.disable()
        assert not gpupool.numba.is_enabled(), "it is enabled after disable()"
    array = imported().device_array(10)
    assert manager().__name__ == "NumbaCUDAMemoryManager", f"disabled, the memory manager is {manager()}"
    assert live() == 0, "disabled, the array is gpupool's"
    error = raised(gpupool.Error, gpupool.numba.enable)
    assert_says(error, "before the first use of numba.cuda", "numba.cuda.close()")
    gpupool.numba.disable()
    del array


def for_as_long_as_it_is_used():
    gpupool.numba.enable()
    array = imported().device_array(10)
    gpupool.numba.enable()
    error = raised(gpupool.Error, gpupool.numba.disable)
    assert type(error) is gpupool.Error, f"after the first use it is {error!r}"
    del array


def not_with_simulated_memory():
    gpupool.numba.enable()
    assert_says(raised(gpupool.RuntimeUnavailable, imported().device_array, 10), "unset GPUPOOL_RUNTIME")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
