"""The allocator for TensorRT. It imports TensorRT, so it is imported when first used.

TensorRT asks for addresses on streams, and for 0 where there is no memory: an exception would only be printed, and None
too, although its documentation asks for it. Its bindings, of 10.0 to 11.1, pass the stream before the flags.
"""

from contextlib import nullcontext

import tensorrt

from gpupool._frameworks.plug import device_of
from gpupool._native import DeviceBuffer, Error, InvalidValue, MemPool, PoolToken, empty, use_mem_pool

# gpupool's memory begins at multiples of this.
_ALIGNMENT = 512
# The legacy default stream, which TensorRT means by no stream.
_LEGACY = 0


class Allocator(tensorrt.IGpuAsyncAllocator):  # type: ignore[misc]
    """Device memory from gpupool, for ``IBuilder``, ``IRuntime`` and ``IExecutionContext`` of TensorRT.

    With a ``pool``, a MemPool or its ``token()``, all memory is the pool's, otherwise that of the pool in whose scope
    the calling thread is. Any thread may call it, as TensorRT does.

    https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api/infer/Core/GpuAllocator.html
    """

    def __init__(self, pool: MemPool | PoolToken | None = None) -> None:
        if pool is not None:
            device_of(pool)
        super().__init__()
        self._pool = pool
        self._buffers: dict[int, DeviceBuffer] = {}
        self._last_error: Exception | None = None

    @property
    def last_error(self) -> Exception | None:
        """Why the last call that failed did, on whichever thread; None if none has failed."""
        return self._last_error

    def allocate_async(self, size: int, alignment: int, stream: int, flags: int) -> int:
        """Allocate memory in the order of a stream, and return its address; 0 for 0 bytes, and if that fails.

        Args:
            size: The number of bytes.
            alignment: A power of two up to 512, or 0 for any.
            stream: The address of the stream, 0 for the legacy default stream. TensorRT documents it after ``flags``,
                and passes it here.
            flags: TensorRT passes 0 or, for memory that it may ask to resize, 1.
        """
        try:
            if alignment > _ALIGNMENT or alignment & (alignment - 1):
                raise InvalidValue(f"alignment must be a power of two up to {_ALIGNMENT}, and is {alignment}")
            # Of the two, one is 0 or the flag 1, which as a stream is the legacy default stream, too.
            buffer = self._allocate(size, stream or flags)
        except Exception as error:
            self._last_error = error
            return 0
        address = buffer.ptr
        if address:
            self._buffers[address] = buffer
        return address

    def _allocate(self, nbytes: int, stream: int) -> DeviceBuffer:
        with nullcontext() if self._pool is None else use_mem_pool(self._pool):
            return empty(nbytes, stream)

    def deallocate_async(self, memory: int, stream: int) -> bool:
        """Free memory in the order of a stream, which may be another than that of the allocation.

        It is reused, on any stream, once the stream's work so far is done. If the stream cannot be named any more, that
        of the legacy default stream counts.

        Returns:
            True, or False if it was not allocated here or cannot be freed; it is then unchanged.
        """
        if not memory:
            return True
        buffer = self._buffers.pop(memory, None)
        if buffer is None:
            self._last_error = InvalidValue(f"{memory:#x} was not allocated here, or was freed before; free it once")
            return False
        for order in (stream, _LEGACY):
            try:
                buffer.free(order)
                return True
            except Error as error:
                self._last_error = error
        self._buffers[memory] = buffer
        return False

    def reallocate(self, address: int, alignment: int, new_size: int) -> int:
        """Return 0, which tells TensorRT that memory cannot be resized in place; it allocates anew."""
        return 0

    def __repr__(self) -> str:
        return f"gpupool.tensorrt.Allocator(pool={self._pool})"
