"""Idle handles of a library that lacks memory itself. The device has 1024 MiB."""

import ctypes

import gpupool
from double import MIB
from other import OUT_OF_MEMORY, take, use_device

library = ctypes.CDLL(gpupool.cublas.path)


def take_alone(mib):
    """Have the library take so many MiB in a call of its own, during which it makes no other; return the status."""
    place = ctypes.c_void_p()
    return library.double_allocate_alone(ctypes.byref(place), ctypes.c_size_t(mib * MIB))


def a_library_that_is_in_a_call_is_not_called():
    use_device(0)
    with gpupool.cublas.lease():
        pass
    assert take(900) == 0
    assert take_alone(200) == OUT_OF_MEMORY, "there was no memory"
    assert take_alone(1) == 0


def a_handle_goes_for_another_caller():
    use_device(0)
    with gpupool.cublas.lease():
        pass
    assert take(900) == 0
    assert take(200) == OUT_OF_MEMORY, "there was no memory"
    assert gpupool.cublas.stats().idle == 0
