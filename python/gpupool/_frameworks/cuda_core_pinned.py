"""The memory resource of pinned memory for cuda.core. It imports cuda.core, so it is imported when first used."""

from typing import Any

import cuda.core

from gpupool._frameworks.plug import index_of
from gpupool._native import PinnedBuffer, empty_pinned


class PinnedMemoryResource(cuda.core.MemoryResource):  # type: ignore[misc]
    """Pinned memory from gpupool, which the host and every device use, for all that takes a resource of cuda.core.

    Kernels and the CPU can use it, and it is not managed; its ``device_id`` is -1, as it is no device's memory.

    https://nvidia.github.io/cuda-python/cuda-core/latest/generated/cuda.core.MemoryResource.html

    ``numa`` is the number of the NUMA node that the memory is on, by default the one nearest to the stream's device. A
    buffer's memory is used again once the work is done that its stream, or the stream that closed it, had by then.
    """

    # As cuda.core asks for them.
    is_device_accessible = True
    is_host_accessible = True
    is_managed = False
    device_id = -1

    def __init__(self, numa: int | None = None) -> None:
        self._numa = None if numa is None else index_of("numa", numa, "the number of a NUMA node, or None")
        self._buffers: dict[int, PinnedBuffer] = {}

    def allocate(self, size: int, *, stream: Any) -> cuda.core.Buffer:
        """Allocate ``size`` bytes for the host and for work on the stream, a cuda.core ``Stream`` or ``GraphBuilder``.

        Raises:
            gpupool.OutOfMemory: There is not enough memory, or this process may lock no more.
            gpupool.InvalidValue: The host has no such NUMA node.
        """
        buffer = empty_pinned(size, stream, self._numa)
        pointer = buffer.ptr
        if pointer:
            self._buffers[pointer] = buffer
        return cuda.core.Buffer.from_handle(pointer, size, mr=self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Free what :meth:`allocate` returned, for use after the work so far on the stream. cuda.core calls this."""
        # 0 bytes have no address.
        if size:
            address = int(ptr)
            self._buffers[address].record_stream(stream)
            # Others may have it still by `pinned_buffer`, and free it with the last of them.
            del self._buffers[address]

    def __repr__(self) -> str:
        return f"gpupool.cuda_core.PinnedMemoryResource(numa={self._numa})"

    def pinned_buffer(self, pointer: int) -> PinnedBuffer | None:
        """Return the gpupool buffer at an address; None if this resource did not allocate it, or it was freed."""
        return self._buffers.get(pointer)
