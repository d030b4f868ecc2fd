"""Numba's arrays beside CuPy's and cuda.core's in one pool of gpupool's, and in a graph that CuPy captures."""

import gc
import sys

import cupy
import gpupool
import numpy as np
from cuda.core import Device
from kernels import MIB, add, address, assert_reserved_nothing, blocks, cuda, fill, manager


def in_one_pool():
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    pool = gpupool.MemPool()

    def assert_live(expected, when):
        found = pool.stats().live_blocks
        assert found == expected, f"{when} the pool has {found} blocks, not {expected}"

    make = cupy.cuda.memory.CFunctionAllocator
    allocator = make(0, gpupool.c_api.cupy_malloc, gpupool.c_api.cupy_free, gpupool.c_api)
    with gpupool.numba.using(pool), gpupool.cuda_core.using(pool), cupy.cuda.using_allocator(allocator.malloc):
        array = cuda.to_device(np.arange(1000, dtype=np.int32))
        buffer = device.allocate(4000, stream=stream)
        other = cupy.empty(1000, np.int32)
    assert_live(3, "with one of each")
    outside = cuda.to_device(np.arange(1000, dtype=np.int32))
    assert_live(3, "with another outside")
    # CuPy's array in Numba's kernel and back.
    add[blocks(array), 256](other, array, outside)
    cuda.synchronize()
    assert (other.get() == 2 * np.arange(1000)).all(), "Numba's kernel wrote something else into CuPy's array"
    assert (cupy.asarray(array).get() == np.arange(1000)).all(), "CuPy sees something else in Numba's array"
    del array, other
    buffer.close()
    gc.collect()
    manager().deallocations.clear()
    assert_live(0, "at the end")
    pool.trim()
    cuda.synchronize()
    pool.trim()
    assert_reserved_nothing(pool.stats())


def in_a_graph_of_their_own():
    pool, stream = gpupool.MemPool(), cupy.cuda.Stream(non_blocking=True)
    mine = cuda.external_stream(stream.ptr)
    source = cuda.to_device(np.arange(MIB, dtype=np.int32))
    out = cuda.device_array(MIB, np.int32)
    cuda.synchronize()
    with stream:
        stream.begin_capture()
        with pool.capture(stream) as memory:
            between = cuda.device_array(MIB, np.int32)
            # Dies while its kernels are captured.
            dead = cuda.device_array(MIB, np.int32)
            add[blocks(out), 256, mine](dead, source, source)
            add[blocks(out), 256, mine](between, dead, source)
            add[blocks(out), 256, mine](out, between, source)
            addresses = {address(between), address(dead)}
            del dead
            others = [cuda.device_array(MIB, np.int32) for _ in range(12)]
            assert not {address(other) for other in others} & addresses, "the graph's memory was used again in it"
            del others
        graph = stream.end_capture()
    del between
    for turn in range(5):
        others = [cuda.to_device(np.full(MIB, -1, np.int32)) for _ in range(8)]
        assert not {address(other) for other in others} & addresses, "the graph's memory was given to others"
        fill[blocks(out), 256](out, 0)
        cuda.synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert (out.copy_to_host() == 4 * np.arange(MIB)).all(), f"replay {turn} is wrong"
        assert all((other.copy_to_host() == -1).all() for other in others), "the graph wrote into others' memory"
        del others
    del graph
    memory.reset()
    manager().deallocations.clear()
    pool.trim()
    cuda.synchronize()
    pool.trim()
    assert_reserved_nothing(pool.stats())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
