"""Copies between buffers and the host, fills, and waiting for a device, by a platform's driver."""

import sys

import gpupool
from double import MIB, calls, driver, error_of, fail, is_capturing, set_capture

# The copy to a device, the copy to the host, the fill, and what waits for a stream and for a device.
CUDA = ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemsetD8Async", "cuStreamSynchronize", "cuCtxSynchronize"]
HIP = ["hipMemcpyHtoDAsync", "hipMemcpyDtoHAsync", "hipMemsetD8Async", "hipStreamSynchronize", "hipDeviceSynchronize"]
NAMES = {"cuda": CUDA, "hip": HIP}


def bytes_go_there_and_back():
    to_device, to_host, set_bytes, synchronize, _ = NAMES[gpupool.runtime()]
    for nbytes, stream in ((1, 0), (1000, gpupool.Stream(1)), (3 * MIB + 1, gpupool.Stream())):
        buffer = gpupool.empty(nbytes, stream)
        content = bytes(number % 251 for number in range(nbytes))
        buffer.copy_from(content)
        assert bytes(buffer) == content, f"{nbytes} bytes are not those that were copied"
        buffer.fill(7)
        read = bytearray(nbytes)
        buffer.copy_to(read)
        assert read == bytes([7]) * nbytes, "the buffer was not filled"
    assert (calls(to_device), calls(to_host), calls(set_bytes)) == (3, 6, 3)
    assert calls(synchronize) == 9, "a copy of memory that is not pinned was not waited for"
    assert driver.double_device() in (-1, 0), "the current device is not that of before"


def pinned_memory_is_not_waited_for():
    to_device, to_host, _, synchronize, _ = NAMES[gpupool.runtime()]
    stream = gpupool.Stream()
    buffer, pinned = gpupool.empty(1000, stream), gpupool.empty_pinned(1000)
    memoryview(pinned)[:] = bytes(range(250)) * 4
    buffer.copy_from(pinned)
    buffer.copy_to(memoryview(pinned))
    assert (calls(to_device), calls(to_host), calls(synchronize)) == (1, 1, 0)
    set_capture(stream.ptr, 1)
    buffer.fill(1)
    buffer.copy_to(pinned)
    told = error_of(buffer.copy_from, b"x" * 1000)
    assert "empty_pinned" in told, told
    assert "captured" in error_of(gpupool.synchronize)
    assert is_capturing(stream.ptr), "a capture was spoilt"
    set_capture(stream.ptr, 0)
    assert bytes(pinned) == bytes(range(250)) * 4, "a captured copy was done"


def refusals_are_told():
    *functions, _, device_synchronize = NAMES[gpupool.runtime()]
    buffer = gpupool.empty(1000, gpupool.Stream())
    copies = [lambda: buffer.copy_from(bytes(1000)), lambda: buffer.copy_to(bytearray(1000)), lambda: buffer.fill(1)]
    for function, call in zip([*functions, device_synchronize], [*copies, gpupool.synchronize], strict=True):
        fail(f"{function}=1")
        error = error_of(call)
        fail()
        assert error.startswith("LibraryError"), error
        assert f"{function.removesuffix('_v2')} failed with" in error, error
        assert "on device 0" in error, error
    buffer.fill(1)
    assert bytes(buffer) == bytes([1]) * 1000, "a refused call spoilt the buffer"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
