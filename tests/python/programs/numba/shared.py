"""Numba's arrays in gpupool's memory that other processes open by Numba's IPC handles."""

import itertools
import pickle
import sys
from types import SimpleNamespace

import gpupool
import numpy as np
from enabled import cuda, manager
from errors import assert_says, raised
from other_process import MIB, other_process, shared_blocks
from waiting import wait_until

COUNT = 10


def content_of(_kept, array):
    with array as opened:
        found = opened.copy_to_host()
        assert_says(raised(ValueError, array.__enter__), "IpcHandle is already opened")
    return found


def content_by_handle(_kept, handle, dtype):
    array = handle.open_array(cuda.current_context(), shape=handle.size // dtype.itemsize, dtype=dtype)
    found = array.copy_to_host()
    handle.close()
    assert_says(raised(ValueError, handle.close), "IpcHandle not opened")
    return found


def content_by_bytes(_kept, reserved, count, dtype):
    # As cuda.open_ipc_array does, whose handle has no such field in cuda.bindings 13.5.
    handle = cuda.driver.IpcHandle(None, SimpleNamespace(reserved=reserved), count * dtype.itemsize, offset=0)
    return content_by_handle(None, handle, dtype)


def content_staged(_kept, handle, ordinal, dtype):
    with cuda.gpus[ordinal]:
        pointer = handle.open_staged(cuda.devices.get_context())
        found = np.zeros(handle.size // dtype.itemsize, dtype)
        cuda.driver.device_to_host(found, pointer, size=handle.size)
        handle.close()
        return found


def keep_open(kept, array):
    kept["handle"], kept["array"] = array, array.open()


def write(kept, number):
    kept["array"].copy_to_device(np.full(kept["array"].shape, number))


def close(kept):
    kept.pop("array")
    kept.pop("handle").close()


def variants():
    whole = np.arange(float(COUNT))
    for index, is_foreign in itertools.product((None, slice(3, None), slice(3, 8), slice(None, 8)), (False, True)):
        array = cuda.to_device(whole)
        if index is not None:
            array = array[index]
        if is_foreign:
            array = cuda.as_cuda_array(array)
        yield array, whole if index is None else whole[index]


def by_every_way():
    with other_process() as other:
        for array, expected in variants():
            assert (other.call(content_of, array.get_ipc_handle()) == expected).all()
            handle = cuda.current_context().get_ipc_handle(array.gpu_data)
            copy = pickle.loads(pickle.dumps(handle))
            assert (copy.base, copy.size) == (None, handle.size)
            assert copy.handle.reserved == handle.handle.reserved
            assert (other.call(content_by_handle, handle, expected.dtype) == expected).all()
            for ordinal in (0, 1):
                assert (other.call(content_staged, handle, ordinal, expected.dtype) == expected).all()
            assert_says(raised(ValueError, handle.open_direct, cuda.current_context()), "original process")
        array = cuda.to_device(np.arange(float(COUNT)))
        handle = cuda.current_context().get_ipc_handle(array.gpu_data)
        assert len(handle.handle.reserved) == 64
        found = other.call(content_by_bytes, handle.handle.reserved, COUNT, np.dtype(float))
        assert (found == np.arange(float(COUNT))).all()
        wait_until(lambda: shared_blocks() == [], "the other process has let go")


def stay_while_they_are_open():
    array = cuda.to_device(np.zeros(MIB // 8))
    with other_process() as other:
        handle = array.get_ipc_handle()
        other.call(keep_open, handle)
        other.call(write, 4.0)
        assert (array.copy_to_host() == 4).all()
        del array, handle
        manager().deallocations.clear()
        assert len(shared_blocks()) == 1
        other.call(write, 5.0)
        other.call(close)
        wait_until(lambda: shared_blocks() == [], "the other process has let go")


def of_other_memory():
    with gpupool.use_mem_pool(gpupool.MemPool(segments=True)):
        array = cuda.to_device(np.zeros(COUNT))
    # Those of segments are the driver's own.
    assert type(cuda.current_context().get_ipc_handle(array.gpu_data)).__module__.startswith("numba.")


def of_a_context_that_others_made():
    from cuda.bindings import driver as bindings
    from numba.cuda.cudadrv import driver

    device = bindings.CUdevice(0)
    handle = driver.driver.cuDevicePrimaryCtxRetain(device)
    context = driver.Context(device, handle)
    context.push()
    try:
        assert int(cuda.current_context().handle) == int(context.handle)
        own = context.memory_manager
        pointer = own.memalloc(100)
        assert gpupool.memory_stats().live_blocks == 1
        assert own.get_memory_info().total == cuda.current_context().get_memory_info().total
        del pointer
        own.reset()
        assert gpupool.memory_stats().live_blocks == 0
    finally:
        context.pop()
        driver.driver.cuDevicePrimaryCtxRelease(device)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
