"""CuPy whose streams and devices are those of the simulated platform. It is imported before CuPy.

CuPy's compiled modules take the functions of its runtime module from a table, as they are imported. What is asked here
is put there in their place.
"""

import ctypes

import gpupool
from cupy_backends.cuda.api import runtime
from gpupool import _native

_set_pointer = ctypes.pythonapi.PyCapsule_SetPointer
_set_pointer.argtypes = [ctypes.py_object, ctypes.c_void_p]
# Called for as long as there is CuPy.
_functions = []


def _replace(name, result, arguments, function):
    if name in runtime.__pyx_capi__:
        _functions.append(ctypes.PYFUNCTYPE(result, *arguments, ctypes.c_int)(function))
        _set_pointer(runtime.__pyx_capi__[name], ctypes.cast(_functions[-1], ctypes.c_void_p))


def _create(*_):
    return _native.host_create_stream(gpupool.current_device())


def _destroy(address, _):
    _native.host_destroy_stream(address)


_replace("getDevice", ctypes.c_int, (), lambda _: gpupool.current_device())
_replace("getDeviceCount", ctypes.c_int, (), lambda _: gpupool.device_count())
_replace("streamCreate", ctypes.c_ssize_t, (), _create)
_replace("streamCreateWithFlags", ctypes.c_ssize_t, (ctypes.c_uint,), _create)
_replace("streamCreateWithPriority", ctypes.c_ssize_t, (ctypes.c_uint, ctypes.c_int), _create)
_replace("streamDestroy", ctypes.py_object, (ctypes.c_ssize_t,), _destroy)

import cupy  # noqa: E402

__all__ = ["cupy"]
