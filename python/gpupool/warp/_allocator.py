"""The allocator of one of Warp's devices, as ``wp.set_device_allocator`` takes one.

Warp calls it in a thread whose current context is the device's, and the device has one current stream for all threads.
Warp does not tell which streams use an array, and its own allocator frees on the legacy default stream, behind all
blocking streams: Warp's own are. So here, too, memory is used again only behind their work so far.
"""

import gc
from collections import deque
from typing import Any

from gpupool._frameworks import late as _late
from gpupool._native import (
    Forked,
    InvalidValue,
    LibraryError,
    OutOfMemory,
    empty,
    follow_blocking,
    is_captured,
)
from gpupool.warp._graphs import GraphMemory, Graphs, Memory

# The legacy default stream, by the number that is not that of a missing stream.
_LEGACY = 1


class Allocator:
    """Device memory for the arrays of one device, from the pool whose scope the thread is in."""

    # Freeing needs no current context, and making it current takes as long as the rest.
    deallocate_requires_context_guard = False

    def __init__(self, device: Any) -> None:
        self._device = device
        self._memory: dict[int, Memory | GraphMemory] = {}
        # Of arrays that died while a stream was captured, which the legacy default stream would spoil.
        self._late: deque[Memory] = deque()
        self._graphs = Graphs(device, self._release)
        _late.free_on_oom(self, device.ordinal, Allocator._free_late)

    def __repr__(self) -> str:
        return f"<gpupool's memory of {self._device}>"

    def allocate(self, size_in_bytes: int) -> int:
        """Allocate memory on the device's current stream, and return its address.

        Raises:
            RuntimeError: There is not enough memory.
        """
        if self._late:
            self._free_late()
        stream = self._device.stream
        try:
            memory = self._allocate(size_in_bytes, stream)
        except OutOfMemory:
            memory = self._allocate_again(size_in_bytes, stream)
        address = (memory.memory if isinstance(memory, GraphMemory) else memory)[0].ptr
        if address:
            self._memory[address] = memory
        return address

    def _allocate(self, nbytes: int, stream: Any) -> Memory | GraphMemory:
        address = stream.cuda_stream or 0
        if is_captured(address):
            return self._graphs.allocate(nbytes, stream)
        return empty(nbytes, address), stream

    def _allocate_again(self, nbytes: int, stream: Any) -> Memory | GraphMemory:
        # Arrays that refer to each other die by this alone.
        gc.collect()
        self._free_late()
        try:
            return self._allocate(nbytes, stream)
        except OutOfMemory as error:
            raise RuntimeError(f"Failed to allocate {nbytes} bytes on device '{self._device}': {error}") from error

    def deallocate(self, ptr: int, size_in_bytes: int) -> None:
        """Free memory that :meth:`allocate` returned; what a graph uses is freed when that is gone, too.

        Raises:
            gpupool.InvalidValue: It is none, or was freed before.
        """
        memory = self._memory.pop(ptr, None)
        if isinstance(memory, tuple):
            self._release(memory)
        elif memory is None and ptr:
            raise InvalidValue(
                f"{ptr:#x} is no memory that {self} returned, or was freed before; free what was allocated, and once"
            )

    def _release(self, memory: Memory) -> None:
        # The caller's reference is the last: memory that is over goes when that does.
        if not self._is_over(memory):
            self._late.append(memory)

    def _is_over(self, memory: Memory) -> bool:
        """Return whether memory may be freed in the order of its stream: that is then behind all blocking streams."""
        buffer, stream = memory
        address = stream.cuda_stream
        if not address:
            # The legacy default stream follows them anyway.
            return True
        try:
            # Other code may have destroyed a stream that is not Warp's, unless it is in use.
            if stream.owner or stream is self._device.stream:
                return follow_blocking(address)
            with self._device.context_guard:
                buffer.free(_LEGACY)
        except Forked:
            # A forked child frees nothing of its parent's.
            return True
        except LibraryError:
            # Whatever is wrong with the device, nobody gets memory that may be in use.
            return False
        return True

    def _free_late(self) -> bool:
        """Free what could not be freed when it died, and return whether any was."""
        return _late.free(self._late, self._is_over)
