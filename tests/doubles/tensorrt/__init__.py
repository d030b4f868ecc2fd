"""A double of TensorRT 11's Python package: what its bindings do with an allocator that is written in Python.

As in TensorRT's pyCore.cpp, which passes the stream before the flags: what an allocator returns becomes an address or
a bool, exceptions and what is neither are reported, and count as no memory. `reported` has what TensorRT prints.
"""

__version__ = "11.1.0.106"

reported = []


class IGpuAllocator:
    """The base of allocators; without its initialisation TensorRT cannot call one."""

    def __init__(self):
        self.is_initialised = True

    def asked_for(self, size, alignment, flags, stream):
        """Return the address for a request of TensorRT, 0 for none."""
        return self._called("allocate_async", int, size, alignment, stream, flags)

    def given_back(self, memory, stream):
        """Return whether the allocator took memory back."""
        return self._called("deallocate_async", bool, memory, stream)

    def resized(self, memory, alignment, size):
        """Return the address of memory that was resized, 0 for none."""
        return self._called("reallocate", int, memory, alignment, size)

    def _called(self, name, returned, *arguments):
        assert self.is_initialised
        try:
            value = getattr(self, name)(*arguments)
        except Exception as error:
            reported.append(error)
            return returned()
        if not isinstance(value, returned):
            reported.append(value)
            return returned()
        return value


class IGpuAsyncAllocator(IGpuAllocator):
    """The base of allocators in the order of streams."""


class Runtime:
    """What an allocator is given to, and keeps it."""

    @property
    def gpu_allocator(self):
        raise AttributeError("it can be set alone")

    @gpu_allocator.setter
    def gpu_allocator(self, allocator):
        assert isinstance(allocator, IGpuAllocator)
        self.allocator = allocator
