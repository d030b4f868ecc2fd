"""The double of cuDSS, which takes device memory when it is told to, and two streams to use it on."""

import ctypes

import gpupool
from double import MIB, driver

OURS = "gpupool.MemPool"
at = ctypes.c_void_p
pool = gpupool.cudss
library = ctypes.CDLL(pool.path)

stream, other = gpupool.Stream(0), gpupool.Stream(0)
# The double takes plain memory of the current device.
scope = gpupool.stream(stream)
scope.__enter__()


class Handler(ctypes.Structure):
    """cudssDeviceMemHandler_t."""

    _fields_ = (
        ("context", at),
        ("allocate", ctypes.CFUNCTYPE(ctypes.c_int, at, ctypes.POINTER(at), ctypes.c_size_t, at)),
        ("free", ctypes.CFUNCTYPE(ctypes.c_int, at, at, ctypes.c_size_t, at)),
        ("name", ctypes.c_char * 64),
    )


def allocate(handle, mib=1):
    """Return the address of memory that the library takes by a handle, None if it gets none."""
    place = at()
    status = library.double_allocate(at(int(handle)), ctypes.byref(place), ctypes.c_size_t(mib * MIB))
    assert (status == 0) == (place.value is not None), f"status {status} with the address {place.value}"
    return place.value


def free(handle, address, mib=1):
    """Return the status of giving memory back by a handle."""
    return library.double_free(at(int(handle)), at(address), ctypes.c_size_t(mib * MIB))


def keep(handle):
    """Have a handle take memory until it is destroyed."""
    assert library.double_keep(at(int(handle)), ctypes.c_size_t(MIB)) == 0, "the handle got no memory to keep"


def set_handler(handle, handler):
    """Set a handle's handler, or none, as its owner may."""
    status = library.cudssSetDeviceMemHandler(at(int(handle)), handler)
    assert status == 0, f"cudssSetDeviceMemHandler answered {status}"


def handler_of(handle):
    """Return a handle's handler, if it has one."""
    handler = Handler()
    status = library.cudssGetDeviceMemHandler(at(int(handle)), ctypes.byref(handler))
    return handler if status == 0 else None


def name_of(handle):
    """Return the name of a handle's handler, if it has one."""
    handler = handler_of(handle)
    return handler and handler.name.decode()


def names_of(*handles):
    """Return the names of handles' handlers."""
    return [name_of(handle) for handle in handles]


def live(mem_pool):
    """Return the MiB that are taken of a pool."""
    return mem_pool.stats().live_bytes // MIB


def used():
    """Return the MiB that are taken of the driver."""
    return driver.double_used(0) // MIB
