"""Numba's memory that kernels use at the host's address. It imports Numba, so it is imported when first used."""

from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as bindings
from numba.cuda.cudadrv import driver


class MappedMemory(driver.MappedMemory):  # type: ignore[misc]
    """Pinned memory of gpupool's. Devices have it at the host's address, for which Numba's own class asks."""

    def __init__(self, context: Any, pointer: int, size: int, *, owner: Any, finalizer: Callable[[], None]) -> None:
        self.owned = owner
        self.host_pointer = self._bufptr_ = pointer
        driver.AutoFreePointer.__init__(self, context, bindings.CUdeviceptr(pointer), size, finalizer=finalizer)
        self.handle = pointer
        self._buflen_ = size
