"""The memory resource for cuda.core. It imports cuda.core, so it is imported when first used."""

from typing import Any

import cuda.core

from gpupool._frameworks.plug import device_of, wrong
from gpupool._native import CudaCoreMemory, InvalidValue, MemPool, current_device

# In these versions `Buffer.from_handle` only calls `_init` with the same arguments, which costs a tenth of an
# allocation. Later ones may have another.
_make_buffer = cuda.core.Buffer._init if cuda.core.__version__.startswith("1.2.") else cuda.core.Buffer.from_handle


class MemoryResource(CudaCoreMemory, cuda.core.MemoryResource):  # type: ignore[misc]
    """Device memory from gpupool, for ``device.memory_resource`` and all else that takes a resource of cuda.core.

    https://nvidia.github.io/cuda-python/cuda-core/latest/generated/cuda.core.MemoryResource.html

    ``device`` is an ordinal or a ``cuda.core.Device``, by default the thread's current one. With a ``pool`` all memory
    is the pool's, otherwise that of the pool in whose scope the thread is. Unlike cuda.core's own resource it allocates
    while a graph is captured, in ``with pool.capture(stream):``.
    """

    # cuda.core asks with each buffer, and attributes cost less than properties.
    is_device_accessible = True
    is_host_accessible = False
    is_managed = False

    def __init__(self, device: Any = None, pool: MemPool | None = None) -> None:
        own = None if pool is None else device_of(pool)
        given = None if device is None else self._ordinal(device)
        if own is not None and given not in (None, own):
            raise InvalidValue(f"{pool} has no memory of device {given}; leave the device out, or make a pool there")
        ordinal = own if own is not None else current_device() if given is None else given
        super().__init__(_make_buffer, cuda.core.Stream, ordinal, pool)
        self._pool = pool

    @staticmethod
    def _ordinal(device: Any) -> int:
        if isinstance(device, str):
            raise wrong("device", device, "an ordinal or a cuda.core.Device")
        try:
            return int(device)
        except (TypeError, ValueError):
            raise wrong("device", device, "an ordinal or a cuda.core.Device") from None

    def __repr__(self) -> str:
        return f"gpupool.cuda_core.MemoryResource(device={self.device_id}, pool={self._pool})"
