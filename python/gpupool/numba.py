"""Numba's arrays in gpupool's memory: ``gpupool.numba.enable()``, or ``NUMBA_CUDA_MEMORY_MANAGER=gpupool.numba``.

It must be chosen before Numba's first use of a GPU, where each context takes its memory manager for good. Then
``cuda.to_device``, ``cuda.device_array`` and the like allocate from gpupool, also in the scopes of its pools:

>>> with gpupool.use_mem_pool(pool):
...     array = cuda.device_array(1000)

Numba has no current stream. A call of gpupool's that names no stream therefore does not follow Numba.

The memory of arrays that died is freed behind a fence through the whole device (cuCtxRecordEvent, cuCtxWaitEvent). That
spoils captures of graphs that gpupool does not know of, so capture in ``with pool.capture(stream):``.

https://nvidia.github.io/numba-cuda/user/external-memory.html
"""

import importlib
import threading
from typing import Any

from gpupool._frameworks import plug as _plug
from gpupool._native import Error, MemPool, PoolScope, PoolToken, use_mem_pool

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
            "numba.cuda.close() lets go of the GPU, but destroys all that the process has there, gpupool's memory too"
        )
    driver.set_memory_manager(manager)


def enable() -> None:
    """Let Numba allocate device memory from gpupool; a second call does nothing.

    Raises:
        gpupool.LibraryNotFound: numba-cuda is missing or too old.
        gpupool.Error: Numba uses a GPU already.
    """
    manager = _manager()
    driver = importlib.import_module("numba.cuda.cudadrv.driver")
    with _lock:
        if driver._memory_manager is not manager:
            _choose(driver, manager)


def disable() -> None:
    """Let Numba allocate by itself, which does nothing if it does already.

    Raises:
        gpupool.Error: Numba uses a GPU already.
    """
    manager = _manager()
    driver = importlib.import_module("numba.cuda.cudadrv.driver")
    with _lock:
        if driver._memory_manager is manager:
            _choose(driver, driver.NumbaCUDAMemoryManager)


def using(pool: MemPool | PoolToken) -> PoolScope:
    """Enable gpupool and let this thread's Numba arrays come from the pool, for a ``with`` block."""
    enable()
    return use_mem_pool(pool)
