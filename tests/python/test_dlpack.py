"""DLPack: what consumers make of a buffer, and when its memory goes."""

import threading

import gpupool
import numpy
import pytest
from own_memory import MIB


@pytest.mark.parametrize("dtype", ["f4", "i8", "c16"])
def test_consumers_make_of_the_bytes_what_they_like(dtype):
    buffer = gpupool.empty(24 * 1000)
    live = gpupool.memory_stats().live_blocks
    array = numpy.from_dlpack(buffer).view(dtype).reshape(5, -1)
    assert (array.ctypes.data, array.nbytes) == (buffer.ptr, buffer.nbytes)
    array[:] = numpy.arange(array.size).reshape(array.shape)
    del buffer
    row = array[3]
    del array
    assert (row == numpy.arange(3 * row.size, 4 * row.size)).all()
    assert gpupool.memory_stats().live_blocks == live
    del row
    assert gpupool.memory_stats().live_blocks == live - 1


def test_shares_end_on_any_thread():
    buffer = gpupool.empty(MIB)
    live = gpupool.memory_stats().live_blocks
    shares = [[numpy.from_dlpack(buffer)] for _ in range(16)]
    del buffer
    threads = [threading.Thread(target=share.clear) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gpupool.memory_stats().live_blocks == live - 1
