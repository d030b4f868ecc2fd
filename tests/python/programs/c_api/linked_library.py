"""A library that is linked to libgpupool.so.0 gets the table of the Python module that is in memory."""

import ctypes
import sys

import gpupool

user = ctypes.CDLL(sys.argv[1])
user.table.restype = ctypes.c_void_p
point = ctypes.pythonapi.PyCapsule_GetPointer
point.restype, point.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
assert user.table() == point(gpupool.c_api.capsule, b"gpupool.c_api")
