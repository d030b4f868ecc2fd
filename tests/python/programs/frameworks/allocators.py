"""What `gpupool.info()` says that frameworks allocate with, before and after gpupool is enabled for them."""

import importlib
import sys
import threading

import gpupool

GPUPOOL = (True, "gpupool")


def assert_told(name, uses_gpupool, allocator):
    (found,) = [each for each in gpupool.info().frameworks if each.name == name]
    told = found.uses_gpupool, found.allocator
    assert told == (uses_gpupool, allocator), f"of {name} is told {told}, not {(uses_gpupool, allocator)}"


def own(nbytes):
    """Refuse to allocate, as a program's own allocator for CuPy."""
    raise MemoryError


def cupys():
    cupy = importlib.import_module("cupy")
    theirs = (False, "CuPy's own pool")
    assert_told("cupy", *theirs)
    with gpupool.cupy.using():
        assert_told("cupy", *GPUPOOL)
    gpupool.cupy.enable()
    assert_told("cupy", *GPUPOOL)
    gpupool.cupy.disable()
    assert_told("cupy", *theirs)
    cupy.cuda.set_allocator(own)
    assert_told("cupy", False, "__main__.own")


def rmms():
    rmm = importlib.import_module("rmm")
    assert_told("rmm", False, "CudaMemoryResource")
    gpupool.rmm.enable()
    assert_told("rmm", *GPUPOOL)
    adaptor = rmm.mr.StatisticsResourceAdaptor(rmm.mr.get_per_device_resource(1))
    rmm.mr.set_per_device_resource(1, adaptor)
    assert_told("rmm", True, "gpupool on device 0, StatisticsResourceAdaptor over gpupool on device 1")


def numbas():
    importlib.import_module("numba")
    assert_told("numba", False, "not chosen yet: numba.cuda is not imported")
    importlib.import_module("numba.cuda")
    assert_told("numba", False, "not chosen yet; at the first use of a GPU it will be Numba's own")
    gpupool.numba.enable()
    assert_told("numba", *GPUPOOL)
    gpupool.numba.disable()
    assert_told("numba", False, "Numba's own")


def cuda_cores():
    importlib.import_module("cuda.core")
    theirs = (False, "cuda.core's own, in this thread")
    assert_told("cuda.core", *theirs)
    gpupool.cuda_core.enable(1)
    assert_told("cuda.core", False, "cuda.core's own on device 0, gpupool on device 1, in this thread")
    gpupool.cuda_core.enable(0)
    assert_told("cuda.core", True, "gpupool, in this thread")
    failed = []

    def ask():
        try:
            assert_told("cuda.core", *theirs)
        except AssertionError as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert not failed, f"in another thread: {failed}"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
