"""Numba's arrays in gpupool's memory, enabled before numba.cuda is imported."""

import importlib

import gpupool
import numpy as np

gpupool.numba.enable()
cuda = importlib.import_module("numba.cuda")
CudaAPIError = importlib.import_module("numba.cuda.cudadrv.driver").CudaAPIError


def manager():
    """Return what numba.cuda allocates with."""
    return cuda.current_context().memory_manager


def bytes_array(nbytes):
    """Return a device array of bytes."""
    return cuda.device_array(nbytes, np.uint8)


def address_of(array):
    """Return where an array is."""
    return array.__cuda_array_interface__["data"][0]
