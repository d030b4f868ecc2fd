"""PyTorch's own allocator objects as suppliers of a MemPool.

Such an object keeps its two functions in C++. What it points to is asked by pybind11's protocol for other binding
libraries, which checks the type; the functions of its class have names in PyTorch's library.

https://github.com/pybind/pybind11/blob/master/include/pybind11/conduit/pybind11_conduit_v1.h
"""

import ctypes
import os
import sys
from typing import Any

from gpupool._native import InvalidValue, LibraryNotFound

_CLASS = "N5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator"
_MALLOC, _RAW_DELETE = f"_Z{_CLASS}6mallocEmaP11CUstream_st", f"_Z{_CLASS}10raw_deleteEPv"
# `typeid` of the class, and the name of that object's own type.
_TYPE, _TYPE_OF_TYPES = f"_ZTI{_CLASS}E", b"St9type_info"
# What pybind11 names the C++ of PyTorch's wheels for Linux.
_PLATFORM = b"system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1"


def addresses(allocator: Any) -> tuple[int, int, int] | None:
    """Return the addresses of PyTorch's C++ object and of its functions for memory; None if it is no such object.

    Args:
        allocator: A ``CUDAPluggableAllocator``, or what its ``allocator()`` returns.

    Raises:
        InvalidValue: It is another allocator of PyTorch's, such as its own caching one.
        LibraryNotFound: PyTorch's library lacks what is needed.
    """
    wrapped = getattr(allocator, "allocator", None)
    found = wrapped() if callable(wrapped) else allocator
    conduit, torch = getattr(found, "_pybind11_conduit_v1_", None), sys.modules.get("torch")
    if conduit is None or torch is None or torch.__file__ is None:
        return None
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so")
    try:
        symbols = ctypes.CDLL(library)
        type_info, malloc, raw_delete = (
            ctypes.addressof(ctypes.c_char.in_dll(symbols, name)) for name in (_TYPE, _MALLOC, _RAW_DELETE)
        )
    except (OSError, ValueError) as error:
        raise LibraryNotFound(
            f"PyTorch {torch.__version__} has no pluggable allocators that gpupool can call: {error}. Give the "
            "addresses of the two C functions instead: MemPool(allocator=(malloc, free))"
        ) from error
    capsule = conduit(_PLATFORM, _capsule(type_info, _TYPE_OF_TYPES), b"raw_pointer_ephemeral")
    if capsule is None:
        raise InvalidValue(
            f"{allocator} is not one of PyTorch's pluggable allocators, which alone can supply a MemPool: give a "
            "CUDAPluggableAllocator, or the addresses of two C functions: MemPool(allocator=(malloc, free))"
        )
    return _pointer(capsule), malloc, raw_delete


def _capsule(address: int, name: bytes) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(address, name, None)


def _pointer(capsule: Any) -> int:
    point = ctypes.pythonapi.PyCapsule_GetPointer
    point.restype, point.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = point(capsule, _CLASS.encode() + b"E")
    return int(address or 0)
