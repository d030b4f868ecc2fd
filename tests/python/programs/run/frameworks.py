"""Real frameworks over the double of a driver, enabled as they are imported, without a start of the driver."""

import importlib
import os
import sys
import threading
import warnings

import _gpupool_enable as hook
import gpupool
from double import MIB, calls, live
from forking import exit_code_of

# What starts the driver, or makes a context.
STARTS = ("cuInit", "cuDevicePrimaryCtxRetain", "cuCtxCreate_v2", "cuCtxCreate_v4")


def starts():
    return sum(map(calls, STARTS))


def imported(module):
    """Return a framework's module."""
    hook.install([hook.FRAMEWORKS[module]])
    found = importlib.import_module(module)
    assert hook.failed == set(), "it could not be enabled"
    assert starts() == 0, "enabling it has started the driver"
    return found


def in_a_child(work):
    """Do work in a child that was forked before its parent used a GPU."""
    # Python warns of forks in processes with threads, of which OpenBLAS has some.
    warnings.simplefilter("ignore")
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    assert exit_code_of(child) == 0, "a child that was forked before the first use failed"


def use_numba():
    cuda = importlib.import_module("numba.cuda")
    array = cuda.device_array(4 * MIB, "u1")
    assert live() == 1, "Numba's memory is its own"
    del array


def of_numba():
    imported("numba.cuda")
    in_a_child(use_numba)
    use_numba()


def use_cuda_core():
    core = importlib.import_module("cuda.core")
    device = core.Device(0)
    device.set_current()
    buffer = device.memory_resource.allocate(MIB, stream=device.create_stream(gpupool.Stream()))
    assert live() == 1, "cuda.core's memory is its own"
    buffer.close()
    assert live() == 0
    assert core.Device(1).memory_resource.device_id == 1


def of_cuda_core():
    core = imported("cuda.core")
    in_a_child(use_cuda_core)
    use_cuda_core()
    # On every thread, and in the device's own calls, until the program chooses another.
    thread = threading.Thread(target=use_cuda_core)
    thread.start()
    thread.join()
    device = core.Device(0)
    ours = device.memory_resource
    assert device.allocate(1, stream=device.create_stream(gpupool.Stream())).memory_resource is ours

    class Own(core.MemoryResource):
        """A resource of the program's."""

        is_device_accessible, is_host_accessible, device_id = True, False, 0

        def allocate(self, size, *, stream):
            raise NotImplementedError

        def deallocate(self, ptr, size, *, stream):
            raise NotImplementedError

    chosen = Own()
    device.memory_resource = chosen
    assert device.memory_resource is chosen


def of_rmm():
    rmm = imported("rmm")
    enabled = importlib.import_module("gpupool.rmm")._enabled
    # As CUDA_VISIBLE_DEVICES has them.
    assert sorted(enabled) == [0, 1]
    for device in (0, 1):
        assert rmm.mr.get_per_device_resource(device) is enabled[device][0]
    assert starts() == 0
    # The program's own choice counts.
    chosen = rmm.mr.CallbackMemoryResource(print, print)
    rmm.mr.set_per_device_resource(0, chosen)
    assert rmm.mr.get_per_device_resource(0) is chosen


def of_cupy():
    cupy = imported("cupy")
    own = importlib.import_module("gpupool.cupy")
    assert cupy.cuda.get_allocator() is own._allocate()
    own.enable(pinned=True)
    own.disable()
    assert cupy.cuda.get_allocator() == cupy.get_default_memory_pool().malloc


def of_cupy_with_a_limit():
    """With CUPY_GPU_MEMORY_LIMIT: it is a part of what the driver says that a device has."""
    cupy = imported("cupy")
    own = importlib.import_module("gpupool.cupy")
    asked = []

    def enable():
        asked.append(cupy.cuda.get_allocator())
        cupy.cuda.set_allocator(lambda nbytes: ("from gpupool", nbytes))

    own.enable = enable
    assert cupy.cuda.get_allocator()(10) == ("from gpupool", 10)
    # What it would go back to is CuPy's own, and it is asked once.
    assert asked == [cupy.get_default_memory_pool().malloc]
    assert cupy.cuda.get_allocator()(11) == ("from gpupool", 11)
    assert len(asked) == 1


def by_the_programs_own_call():
    """The call imports the framework, after which the hook has its part, in the middle of the call."""
    hook.install(["cupy", "cuda_core", "numba", "rmm"])
    gpupool.cupy.enable()
    gpupool.cupy.disable()
    cupy = sys.modules["cupy"]
    assert cupy.cuda.get_allocator() == cupy.get_default_memory_pool().malloc
    gpupool.cuda_core.enable(0)
    use_cuda_core()
    gpupool.rmm.enable()
    gpupool.rmm.disable()
    gpupool.numba.enable()
    use_numba()
    assert hook.failed == set(), "a framework that the program enables is told of"


if __name__ == "__main__":
    globals()[sys.argv[1]]()
