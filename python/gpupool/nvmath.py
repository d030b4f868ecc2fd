"""nvmath-python on gpupool: leased handles and gpupool's memory, by nvmath's own ``options``.

>>> from nvmath.sparse.advanced import DirectSolver
>>> gpupool.cudss.set_mem_pool(gpupool.MemPool(limit=8 << 30))  # optional: cuDSS's own memory from gpupool
>>> with gpupool.nvmath.options(gpupool.cudss, stream) as options, DirectSolver(a, b, options=options) as solver:
...     solver.plan()

Without gpupool nvmath creates a handle for each solver, 64 MiB of device memory for cuDSS, and destroys it with the
solver. https://docs.nvidia.com/cuda/nvmath-python/latest/host-apis/index.html
"""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, SupportsIndex

from gpupool._frameworks import plug as _plug
from gpupool._native import DeviceBuffer, HandlePool, InvalidValue, LibraryNotFound, empty

if TYPE_CHECKING:
    from logging import Logger

    from gpupool.typing import CudaStream, StreamLike

__all__ = ["MemoryManager", "options"]


class MemoryManager:
    """An ``allocator`` for nvmath's options: memory of gpupool, from the pool whose scope the thread is in.

    It implements nvmath's protocol ``BaseCUDAMemoryManagerAsync``:
    https://docs.nvidia.com/cuda/nvmath-python/latest/host-apis/generated/nvmath.BaseCUDAMemoryManagerAsync.html
    """

    def __init__(self, device_id: int, logger: "Logger | None" = None) -> None:
        """Serve nvmath on this device, and log each allocation to the logger at the level DEBUG."""
        self.device_id = device_id
        self.logger = logger

    def memalloc_async(self, size: int, stream: "CudaStream") -> DeviceBuffer:
        """Allocate ``size`` bytes on the stream, which are freed in its order when the object dies.

        Raises:
            gpupool.OutOfMemory: There is not enough memory. The exception is a MemoryError too.
        """
        buffer = empty(size, stream)
        if self.logger is not None:
            self.logger.debug("gpupool: %d bytes at %#x on stream %#x", size, buffer.ptr, buffer.stream)
        return buffer


# The libraries whose handles nvmath takes, with the name that NVIDIA's pathfinder has for each, and whether its options
# have an allocator.
_LIBRARIES = {
    "cudss": ("cudss", False),
    "cublaslt": ("cublasLt", True),
    "cusolver": ("cusolver", True),
    "cutensor": ("cutensor", True),
}


@contextmanager
def options(
    pool: HandlePool,
    stream: "StreamLike | None" = None,
    device: SupportsIndex | None = None,
    timeout: float | None = None,
    **others: Any,
) -> Iterator[dict[str, Any]]:
    """Lend a handle as the ``options`` of an nvmath solver, product or contraction, for a ``with`` block.

    Free the solver before the block ends. A cuDSS handle for which nvmath loads a threading layer, from
    ``multithreading_lib`` or the variable CUDSS_THREADING_LIB, is not lent again, because cuDSS cannot undo that.

    Args:
        pool: ``gpupool.cudss`` for ``nvmath.sparse.advanced.DirectSolver``, ``cublaslt`` for
            ``nvmath.linalg.advanced.Matmul``, ``cusolver`` for ``nvmath.linalg.DirectSolver`` or ``cutensor`` for
            ``nvmath.tensor.BinaryContraction`` and its like.
        stream: As for :meth:`gpupool.HandlePool.lease`; nvmath sets the stream of each call itself.
        device: As for :meth:`gpupool.HandlePool.lease`.
        timeout: As for :meth:`gpupool.HandlePool.lease`.
        **others: nvmath's further options. Where those have an ``allocator``, it is a :class:`MemoryManager` unless one
            is given; cuDSS's have none, so see :meth:`gpupool.HandlePool.set_mem_pool`.

    Raises:
        gpupool.LibraryNotFound: nvmath-python is missing or too old, or has loaded another copy of the library.
        gpupool.InvalidValue: The pool is another library's.
        gpupool.Error: As for :meth:`gpupool.HandlePool.lease`.
    """
    _plug.require("nvmath", (0, 9), "nvmath-python")
    if not isinstance(pool, HandlePool):
        raise _plug.wrong("pool", pool, "a pool of handles, such as gpupool.cudss")
    if pool.name not in _LIBRARIES:
        raise InvalidValue(f"nvmath takes no {pool.name} handles; give gpupool.{' or gpupool.'.join(_LIBRARIES)}")
    name, has_allocator = _LIBRARIES[pool.name]
    _refuse_another_copy(pool, name)
    lease = pool.lease(stream, device, timeout)
    try:
        chosen = {**others, "handle": int(lease)}
        if has_allocator and chosen.get("allocator") is None:
            chosen["allocator"] = MemoryManager(lease.device, others.get("logger"))
        yield chosen
    finally:
        if pool.name == "cudss" and _has_threading_layer(others.get("multithreading_lib")):
            lease.discard()
        else:
            lease.release()


def _refuse_another_copy(pool: HandlePool, name: str) -> None:
    """Raise LibraryNotFound if nvmath uses another copy of a library, which does not know gpupool's handles."""
    # First, so that gpupool's copy is loaded and pathfinder returns that one, unless another was loaded before it.
    own = pool.path
    theirs = importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib(name).abs_path
    if own is not None and theirs is not None and not os.path.samefile(own, theirs):
        raise LibraryNotFound(
            f"gpupool has loaded {own} and nvmath {theirs}: a handle is good for one of them only. Set "
            f"GPUPOOL_{pool.name.upper()}_PATH={theirs} before gpupool first needs {pool.name}"
        )


def _has_threading_layer(library: str | None) -> bool:
    """Return whether nvmath loads this threading layer, by the same rule as nvmath."""
    if library is None:
        library = os.environ.get("CUDSS_THREADING_LIB")
    return library is not None and os.path.isfile(library)


def __dir__() -> list[str]:
    return sorted(__all__)
