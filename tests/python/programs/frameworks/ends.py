"""A process ends with what a framework made in gpupool's memory alive, whichever of the two packages came first."""

import atexit
import importlib
import sys
import threading

import numpy as np

# What lives until the interpreter lets it go.
alive = []


class Late:
    """Allocates when it goes."""

    def __init__(self, empty):
        self.empty = empty

    def __del__(self):
        self.array = self.empty(10)


class Null:
    """The default stream."""

    ptr = 0


def imported(*order):
    """Import packages in this order, and return gpupool and the other one."""
    packages = {name: importlib.import_module(name) for name in order}
    gpupool = packages.pop("gpupool")
    return gpupool, *packages.values()


def in_a_cycle(what):
    """Return what the last collection alone finds."""
    cycle = [what]
    cycle.append(cycle)
    return cycle


def keep_from_a_thread(make):
    thread = threading.Thread(target=lambda: alive.append(make()))
    thread.start()
    thread.join()
    assert len(alive) == 32, "the thread allocated nothing"


def assert_live(gpupool, expected):
    live = gpupool.memory_stats().live_blocks
    assert live == expected, f"{live} blocks are alive, not {expected}"


def with_cupy(*order):
    """Allocate as it ends, too."""
    gpupool, cupy = imported(*order)
    # Without its C function CuPy is asked by this one, which needs no driver.
    del cupy.cuda.stream.__pyx_capi__["get_current_stream"]
    cupy.cuda.get_current_stream = lambda device=-1: Null
    gpupool.cupy.enable()
    pool = gpupool.MemPool()
    scope = gpupool.cupy.using(pool)
    scope.__enter__()
    alive.extend([pool, scope, cupy.empty(1000), in_a_cycle(cupy.empty(1000)), Late(cupy.empty)])
    atexit.register(cupy.empty, 1000)
    assert_live(gpupool, 2)


def with_rmm(way, *order):
    gpupool, rmm = imported(*order)
    if way == "callback":
        gpupool.rmm._module = False
    gpupool.rmm.enable()
    own = rmm.mr.get_per_device_resource(0)
    buffer = rmm.DeviceBuffer(size=1000, mr=own)
    pool = gpupool.MemPool(allocator=gpupool.rmm.allocator(own))
    alive.extend([own, buffer, in_a_cycle(rmm.DeviceBuffer(size=1000, mr=own)), pool])
    assert_live(gpupool, 2)


def with_warp(doubles, *order):
    """Have graphs, too; Warp is its double."""
    sys.path.insert(0, doubles)
    gpupool, warp = imported(*order)
    gpupool.warp.runtime = lambda: "cuda"
    gpupool.warp.enable()
    # What lives until the interpreter lets the module go.
    warp.alive = [warp.empty(1000 << number, "cuda:1") for number in range(10)]
    for _ in range(2):
        with warp.ScopedCapture() as capture:
            warp.alive.append(warp.empty(1 << 20))
            warp.empty(1 << 20)
        warp.alive.append(capture)
    in_a_cycle(warp.empty(1000))
    assert_live(gpupool, 5)


def with_cuda_core(*order):
    gpupool, core = imported(*order)
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream(gpupool.Stream())
    gpupool.cuda_core.enable()
    alive.extend(device.allocate(1000, stream=stream) for _ in range(30))
    alive.append(gpupool.cuda_core.to_buffer(gpupool.empty(1000)))
    keep_from_a_thread(lambda: device.memory_resource.allocate(10, stream=stream))
    alive.extend([device, stream])


def with_numba(first):
    if first == "numba":
        importlib.import_module("numba.cuda")
    importlib.import_module("gpupool").numba.enable()
    cuda = importlib.import_module("numba.cuda")
    alive.extend(cuda.to_device(np.arange(1000)) for _ in range(30))
    alive.append(alive[0][3:4])
    keep_from_a_thread(lambda: cuda.device_array(100, np.uint8))


if __name__ == "__main__":
    globals()[f"with_{sys.argv[1]}"](*sys.argv[2:])
