"""How gpupool becomes Numba's memory manager, beside by being enabled: numba.cuda is imported when that is decided."""

import importlib
import sys

import gpupool
import numpy as np
from double import live


def by_its_name_in_the_environment():
    cuda = importlib.import_module("numba.cuda")
    array = cuda.to_device(np.arange(10))
    module = type(cuda.current_context().memory_manager).__module__
    assert module == "gpupool._frameworks.numba_manager", f"the memory manager is of {module}"
    assert live() == 1, "the array is not gpupool's"
    del array


def by_using():
    pool = gpupool.MemPool()
    with gpupool.numba.using(pool):
        array = importlib.import_module("numba.cuda").device_array(1000)
    requested = pool.stats().requested_bytes
    assert requested == 8000, f"{requested} bytes of the pool were asked for"
    del array


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
