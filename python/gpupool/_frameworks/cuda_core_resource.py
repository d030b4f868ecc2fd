"""The memory resource for cuda.core. It imports cuda.core, so it is imported when first used."""

from typing import Any

import cuda.core

from gpupool._native import DeviceBuffer, InvalidValue, MemPool, current_device, empty, use_mem_pool


class MemoryResource(cuda.core.MemoryResource):  # type: ignore[misc]
    """Device memory from gpupool, for ``device.memory_resource`` and all else that takes a resource of cuda.core.

    https://nvidia.github.io/cuda-python/cuda-core/latest/generated/cuda.core.MemoryResource.html

    ``device`` is an ordinal or a ``cuda.core.Device``, by default the thread's current one. With a ``pool`` all memory
    is the pool's, otherwise that of the pool in whose scope the thread is. Unlike cuda.core's own resource it allocates
    while a graph is captured, in ``with pool.capture(stream):``.
    """

    def __init__(self, device: Any = None, pool: MemPool | None = None) -> None:
        if pool is not None and device is not None and int(device) != pool.device:
            raise InvalidValue(
                f"{pool} has no memory of device {int(device)}; leave the device out, or make a pool there"
            )
        self._device = pool.device if pool is not None else current_device() if device is None else int(device)
        self._pool = pool
        self._buffers: dict[int, DeviceBuffer] = {}
        # The addresses of the buffers that :meth:`device_buffer` has returned.
        self._shared: set[int] = set()

    def allocate(self, size: int, *, stream: Any) -> cuda.core.Buffer:
        """Allocate ``size`` bytes for work on the stream, a cuda.core ``Stream`` or ``GraphBuilder``.

        Raises:
            gpupool.OutOfMemory: There is not enough memory.
            gpupool.InvalidValue: The stream is of another device.
        """
        # An address costs less than an object that has to be asked for it; a default stream is the current context's.
        address = stream.__cuda_stream__()[1]
        if self._pool is None:
            buffer = empty(size, address)
        else:
            with use_mem_pool(self._pool):
                buffer = empty(size, address)
        if buffer.device != self._device:
            raise InvalidValue(
                f"{stream} is a stream of device {buffer.device}, and the memory of device {self._device}"
            )
        pointer = buffer.ptr
        if pointer:
            self._buffers[pointer] = buffer
        return cuda.core.Buffer.from_handle(pointer, size, mr=self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Free what :meth:`allocate` returned, after the work so far on the stream. cuda.core calls this."""
        # 0 bytes have no address.
        if size:
            pointer = int(ptr)
            buffer = self._buffers.pop(pointer)
            if pointer not in self._shared:
                buffer.free(stream.__cuda_stream__()[1])
            else:
                # Its last user frees it.
                self._shared.discard(pointer)
                buffer.record_stream(stream)

    @property
    def is_device_accessible(self) -> bool:
        """True, as kernels can use the memory."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """False, as the CPU cannot use the memory."""
        return False

    @property
    def is_managed(self) -> bool:
        """False, as it is not managed memory."""
        return False

    @property
    def device_id(self) -> int:
        """The device's ordinal."""
        return self._device

    def __repr__(self) -> str:
        return f"gpupool.cuda_core.MemoryResource(device={self._device}, pool={self._pool})"

    def device_buffer(self, pointer: int) -> DeviceBuffer | None:
        """Return the gpupool buffer at an address; None if this resource did not allocate it, or it was freed."""
        buffer = self._buffers.get(pointer)
        if buffer is not None:
            self._shared.add(pointer)
        return buffer
