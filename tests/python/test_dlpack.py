"""DLPack: what consumers make of a buffer, and when its memory goes."""

import gc
import threading

import gpupool
import numpy
import pytest
from own_memory import MIB


def live():
    gc.collect()
    return gpupool.memory_stats().live_blocks


def test_simulated_memory_is_no_cuda_array_but_dlpack_of_the_cpu():
    buffer = gpupool.empty(16)
    assert not hasattr(buffer, "__cuda_array_interface__")
    assert buffer.__dlpack_device__() == (1, 0)
    assert "dltensor_versioned" in repr(buffer.__dlpack__(max_version=(1, 0)))
    assert '"dltensor"' in repr(buffer.__dlpack__())
    for wrong in ({"copy": True}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError):
            buffer.__dlpack__(**wrong)
    with pytest.raises(BufferError, match="not copied"):
        numpy.from_dlpack(buffer, copy=True)


@pytest.mark.parametrize("dtype", ["f4", "i8", "c16"])
def test_consumers_make_of_the_bytes_what_they_like(dtype):
    buffer = gpupool.empty(24 * 1000)
    before = live()
    array = numpy.from_dlpack(buffer)
    assert (array.shape, array.dtype) == ((24 * 1000,), numpy.uint8)
    array = array.view(dtype).reshape(5, -1)
    assert (array.ctypes.data, array.nbytes) == (buffer.ptr, buffer.nbytes)
    array[:] = numpy.arange(array.size).reshape(array.shape)
    del buffer
    row = array[3]
    del array
    assert (row == numpy.arange(3 * row.size, 4 * row.size)).all()
    assert live() == before
    del row
    assert live() == before - 1
    assert numpy.from_dlpack(gpupool.empty(0)).shape == (0,)


def test_what_is_exported_lives_as_long_as_its_shares_which_end_on_any_thread():
    buffer = gpupool.empty(MIB)
    before = live()
    shares = [[numpy.from_dlpack(buffer)] for _ in range(16)]
    # What nobody takes is no share any more.
    capsules = [buffer.__dlpack__(max_version=(1, 0))]
    with pytest.raises(gpupool.InvalidValue, match="shared by DLPack"):
        buffer.free()
    del buffer
    threads = [threading.Thread(target=share.clear) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert live() == before
    capsules.clear()
    assert live() == before - 1
