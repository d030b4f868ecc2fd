"""Numba's pinned and mapped arrays in gpupool's pinned memory."""

import sys
import threading

import gpupool
import numpy as np
from double import MIB, calls, fail, is_capturing, set_capture
from enabled import CudaAPIError, bytes_array, cuda, manager
from errors import assert_says, raised


def live():
    """Return the number of blocks of pinned memory that were not freed."""
    stats = gpupool.pinned_stats()
    return stats.live_blocks - stats.waiting_blocks


def are_gpupools_where_that_is_chosen():
    own = cuda.pinned_array(1000)
    assert (live(), calls("cuMemHostAlloc")) == (0, 1), "pinned memory is gpupool's though that is not chosen"
    gpupool.numba.enable(pinned=True)
    gpupool.numba.enable()
    array = cuda.pinned_array((100, 10), np.float32)
    requested = gpupool.pinned_stats().requested_bytes
    assert (live(), requested) == (1, 4000), f"{live()} blocks with {requested} bytes, not one with 4000"
    array[:] = np.arange(1000, dtype=np.float32).reshape(100, 10)
    device = cuda.to_device(array)
    back = cuda.pinned_array_like(array)
    device.copy_to_host(back)
    assert (back == array).all(), "the array came back with other values"
    assert calls("cuMemHostAlloc") == 1, "the driver was asked for pinned memory"
    view = array[1:]
    del array, back, device
    manager().deallocations.clear()
    assert live() == 1, "the memory went though a view has it"
    del view
    manager().deallocations.clear()
    assert live() == 0, "an array that is gone is alive"
    assert cuda.mapped_array(10, wc=False).nbytes == 80, "a mapped array has another size"
    gpupool.numba.enable(pinned=False)
    before = calls("cuMemHostAlloc")
    other = cuda.pinned_array(1000)
    assert calls("cuMemHostAlloc") == before + 1, "pinned memory is gpupool's after that was ended"
    del own, other


def are_gpupools_in_a_block_alone():
    pool, found = gpupool.MemPool(), []

    def elsewhere():
        cuda.pinned_array(1000)
        found.append(live())

    with gpupool.numba.using(pool, pinned=True) as entered:
        assert entered is pool, f"the block has {entered}"
        pinned, array = cuda.pinned_array(1000), bytes_array(MIB)
        with gpupool.numba.using(pinned=True):
            inner = cuda.pinned_array(1000)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    outside = cuda.pinned_array(1000)
    assert (found, live()) == ([2], 2), f"another thread saw {found} blocks, and {live()} are alive, not 2"
    assert pool.stats().live_blocks == 1, "the pool of the block was not used"
    del pinned, array, inner, outside


def have_the_hosts_address_on_every_device():
    gpupool.numba.enable(pinned=True)
    array = cuda.mapped_array(1000, np.uint8)
    address = array.__cuda_array_interface__["data"][0]
    assert address == array.ctypes.data, f"a device has it at {address:#x}, the host at {array.ctypes.data:#x}"
    assert calls("cuMemHostGetDevicePointer_v2") == 0, "the driver was asked for the address"
    view = array[10:20]
    del array
    manager().deallocations.clear()
    assert live() == 1, "the memory went though a view has it"
    del view
    manager().deallocations.clear()
    assert (live(), len(manager().allocations)) == (0, 0), "an array that is gone is alive"


def are_not_pinned_twice():
    buffer = gpupool.empty_pinned(MIB)
    array = np.frombuffer(buffer, np.uint8)
    with cuda.pinned(array):
        pass
    with cuda.mapped(array) as mapped:
        address = mapped.__cuda_array_interface__["data"][0]
    assert address == buffer.ptr, f"a device has it at {address:#x}, the host at {buffer.ptr:#x}"
    before = calls("cuMemHostRegister_v2")
    with cuda.pinned(np.zeros(1000)):
        registered = calls("cuMemHostRegister_v2")
    assert registered == before + 1, "memory that is not gpupool's was not pinned"
    del array, mapped
    assert len(manager().allocations) == 0, "what was mapped is kept"
    buffer.free()


def wait_for_the_work_of_all_devices():
    gpupool.numba.enable(pinned=True)
    with cuda.gpus[1]:
        other = bytes_array(10)
    array = cuda.pinned_array(32 * MIB, np.uint8)
    before = calls("cuCtxRecordEvent")
    del array
    manager().deallocations.clear()
    assert calls("cuCtxRecordEvent") == before + 2, "the memory does not wait for the work of both devices"
    assert calls("cuCtxWaitEvent") == 0, "later work waits"
    assert live() == 0, "the array is alive"
    del other


def that_are_not_to_be_had_are_numbas_error():
    gpupool.numba.enable(pinned=True)
    gpupool.set_pinned_limit(8 * MIB)
    array = cuda.pinned_array(7 * MIB, np.uint8)
    error = raised(CudaAPIError, cuda.pinned_array, 4 * MIB, np.uint8)
    assert_says(error, "out of pinned memory")
    assert isinstance(error.__cause__, gpupool.OutOfMemory), f"the error's cause is {error.__cause__!r}"
    del array
    array = cuda.pinned_array(5 * MIB, np.uint8)
    assert live() == 1, f"{live()} blocks are alive, not one"
    # Write-combined memory is the driver's.
    fail(f"cuMemHostAlloc={calls('cuMemHostAlloc') + 1}")
    raised(CudaAPIError, cuda.current_context().memhostalloc, 100, wc=True)
    fail()
    del array


def that_die_in_a_capture_wait_for_its_end():
    gpupool.numba.enable(pinned=True)
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    array = cuda.pinned_array(32 * MIB, np.uint8)
    set_capture(stream.ptr, 1)
    with pool.capture(stream):
        del array
        manager().deallocations.clear()
        arrays = [cuda.pinned_array(100) for _ in range(3)]
    assert is_capturing(stream.ptr), "an array spoilt the capture"
    assert live() == 4, "an array was freed during the capture"
    set_capture(stream.ptr, 0)
    arrays.clear()
    other = cuda.pinned_array(32 * MIB, np.uint8)
    assert live() == 1, "after the capture what had died was not freed"
    del other


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
