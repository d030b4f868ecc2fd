"""Numba's arrays in gpupool's memory: ``gpupool.numba.enable()``, or ``NUMBA_CUDA_MEMORY_MANAGER=gpupool.numba``.

It must be enabled before Numba's first use of a GPU, when each context chooses its memory manager permanently. Then
``cuda.to_device``, ``cuda.device_array`` and the like allocate from gpupool, also in the scopes of its pools:

>>> with gpupool.use_mem_pool(pool):
...     array = cuda.device_array(1000)

Pinned memory is Numba's own unless it is enabled too, at any time: ``gpupool.numba.enable(pinned=True)``. Then
``cuda.pinned_array`` and ``cuda.mapped_array`` come from gpupool. ``cuda.pinned`` and ``cuda.mapped`` pin existing
memory, which Numba still does itself; they accept arrays in gpupool's pinned memory as they are.

Numba has no current stream, so calls of gpupool without a stream do not use a stream of Numba.

The memory of arrays that died is freed behind a fence through the whole device (cuCtxRecordEvent, cuCtxWaitEvent). That
invalidates captures of graphs that gpupool does not know of, so capture in ``with pool.capture(stream):``.

https://nvidia.github.io/numba-cuda/user/external-memory.html
"""

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from gpupool._frameworks import pinned_choice as _pinned_choice
from gpupool._frameworks import plug as _plug
from gpupool._native import Error, MemPool, PoolToken

__all__ = ["disable", "enable", "is_enabled", "using"]

_lock = threading.Lock()


def _manager() -> Any:
    _plug.require("numba_cuda", (0, 30), "numba-cuda[cu13]")
    return importlib.import_module("gpupool._frameworks.numba_manager").MemoryManager


def __getattr__(name: str) -> Any:
    # Numba reads this name from the module that NUMBA_CUDA_MEMORY_MANAGER names.
    if name == "_numba_memory_manager":
        return _manager()
    raise AttributeError(f"module 'gpupool.numba' has no attribute {name!r}")


def _choose(driver: Any, manager: Any) -> None:
    """Set the memory manager of contexts to come.

    Raises:
        gpupool.Error: There is a context already, which keeps the manager that it has.
    """
    devices = [device.id for device in driver.driver.list_devices() if device.primary_context is not None]
    if devices:
        raise Error(
            f"Numba uses the GPU already (device {', '.join(map(str, devices))}), and keeps the memory manager that it "
            "began with: choose it before the first use of numba.cuda, or set NUMBA_CUDA_MEMORY_MANAGER=gpupool.numba. "
            "numba.cuda.close() releases the GPU, but destroys all that the process has there, gpupool's memory too"
        )
    driver.set_memory_manager(manager)


def enable(*, pinned: bool | None = None) -> None:
    """Let Numba allocate device memory from gpupool; a second call changes only pinned memory.

    Args:
        pinned: True to let pinned arrays of all threads come from gpupool too, from now on; False to end that; None
            leaves it as it is.

    Raises:
        gpupool.LibraryNotFound: numba-cuda is missing or too old.
        gpupool.Error: Numba has already used a GPU.
    """
    manager = _manager()
    driver = importlib.import_module("numba.cuda.cudadrv.driver")
    with _lock:
        if driver._memory_manager is not manager:
            _choose(driver, manager)
    if pinned is not None:
        _pinned_choice.numba.for_all = pinned


def disable() -> None:
    """Let Numba use its own allocators again, also for pinned memory. This does nothing if it already does.

    Raises:
        gpupool.Error: Numba has already used a GPU.
    """
    manager = _manager()
    driver = importlib.import_module("numba.cuda.cudadrv.driver")
    with _lock:
        if driver._memory_manager is manager:
            _choose(driver, driver.NumbaCUDAMemoryManager)
    _pinned_choice.numba.for_all = False


def is_enabled() -> bool:
    """Return True if gpupool is Numba's memory manager: by :func:`enable`, or by NUMBA_CUDA_MEMORY_MANAGER."""
    driver = sys.modules.get("numba.cuda.cudadrv.driver")
    # Who has chosen gpupool's manager has imported it.
    own = sys.modules.get("gpupool._frameworks.numba_manager")
    return driver is not None and own is not None and driver._memory_manager is own.MemoryManager


@contextmanager
def using(pool: MemPool | PoolToken | None = None, *, pinned: bool = False) -> Iterator[Any]:
    """Enable gpupool and let this thread's Numba arrays come from the pool, for a ``with`` block, which gets the pool.

    Args:
        pool: A MemPool, or its ``token()`` in other threads than its own; None for gpupool's default memory, or for the
            pool whose scope the thread is in.
        pinned: Let this thread's pinned arrays come from gpupool too, which belong to no pool.
    """
    enable()
    with _plug.scope(pool), _pinned_choice.numba.in_block() if pinned else nullcontext():
        yield pool


def __dir__() -> list[str]:
    return sorted(__all__)
