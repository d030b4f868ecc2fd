# cython: language_level=3
"""RMM's resources over gpupool, for RMM 26.06 and later: requests run no Python.

They are subclasses of RMM's own class, made from the declarations that RMM installs for this: what a version of RMM
declares otherwise fails to compile, and a module is used with the version alone that it was compiled for.
"""

from cython.operator cimport dereference as deref
from libc.stdint cimport uintptr_t
from libcpp.memory cimport unique_ptr
from libcpp.optional cimport optional
from rmm.librmm.memory_resource cimport device_async_resource_ref
from rmm.pylibrmm.memory_resource._memory_resource cimport DeviceMemoryResource


cdef extern from *:
    """
    #define GPUPOOL_NO_LIBRARY
    #include <gpupool_rmm.hpp>

    namespace {

    void take_table(const void *table) { gpupool::set_api(static_cast<const gpupool_api *>(table)); }

    // RMM's Cython holds references so, and they refer to what its classes own.
    template <class Resource> std::optional<cython_device_async_resource_ref> refer(Resource &resource) {
      return cython_device_async_resource_ref(rmm::device_async_resource_ref(resource));
    }

    } // namespace
    """
    cppclass rmm_resource "gpupool::rmm_resource":
        rmm_resource(int device) except +
    cppclass rmm_pinned_resource "gpupool::rmm_pinned_resource":
        rmm_pinned_resource(int device) except +
    void take_table(const void *) except +
    optional[device_async_resource_ref] refer[Resource](Resource &) except +
    int RMM_VERSION_MAJOR, RMM_VERSION_MINOR


cdef class MemoryResource(DeviceMemoryResource):
    """Memory of a device from gpupool, as an RMM resource."""

    cdef unique_ptr[rmm_resource] c_obj
    cdef readonly int device

    def __cinit__(self, int device):
        self.device = device
        self.c_obj.reset(new rmm_resource(device))
        self.c_ref = refer(deref(self.c_obj))

    def __repr__(self):
        return f"<gpupool.rmm.MemoryResource device={self.device}>"


cdef class PinnedMemoryResource(DeviceMemoryResource):
    """Pinned memory from gpupool, as an RMM resource."""

    cdef unique_ptr[rmm_pinned_resource] c_obj
    cdef readonly int device

    def __cinit__(self, int device):
        self.device = device
        self.c_obj.reset(new rmm_pinned_resource(device))
        self.c_ref = refer(deref(self.c_obj))

    def __repr__(self):
        return f"<gpupool.rmm.PinnedMemoryResource device={self.device}>"


def version():
    """Return the major and minor version of the RMM that this was compiled for."""
    return RMM_VERSION_MAJOR, RMM_VERSION_MINOR


def start(uintptr_t table):
    """Take gpupool's table of functions, before any resource is made."""
    take_table(<const void *>table)
