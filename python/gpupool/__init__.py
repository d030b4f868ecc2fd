"""Ready handles of cuDNN, cuBLAS, cuSPARSE and others, and of ROCm's libraries, and a caching allocator.

>>> import gpupool
>>> stream = gpupool.Stream()  # or one of CuPy, PyTorch, Numba, cuda.core
>>> buffer = gpupool.empty(1 << 20, stream)  # device memory from a caching allocator, freed in stream order
>>> handle = gpupool.simulated.handle(stream)  # this thread's handle; on a GPU use gpupool.cublas.handle(stream) etc.

A thread keeps its handles until it ends; then they return to the pool, and the next thread gets them. Importing this
package loads no GPU library: that happens at the first call that needs one.

The public names, by purpose; frameworks have modules of their own, such as ``gpupool.torch``, and ``gpupool.typing``
has the classes of results:

- libraries' handles: ``HandlePool``, ``cublas``, ``cublaslt``, ``cudnn``, ``cudss``, ``cusolver``, ``cusparse``,
  ``cusparselt``, ``custatevec``, ``cutensor``, ``cutensornet``, ``hipblas``, ``hipblaslt``, ``hipsolver``,
  ``hipsparse``, ``miopen``, ``simulated``
- device memory: ``DeviceBuffer``, ``MemPool``, ``MemoryRange``, ``empty``, ``graph_pool_handle``, ``use_mem_pool``
- pinned memory of the host: ``PinnedBuffer``, ``empty_pinned``, ``get_pinned_limit``, ``set_pinned_limit``,
  ``warm_pinned``
- devices and streams: ``Stream``, ``current_device``, ``current_stream``, ``device_count``, ``enable_peer_access``,
  ``peers``, ``runtime``, ``stream``, ``synchronize``
- other processes: ``attach``, ``available_memory``, ``claim``, ``neighbours``, ``set_neighbour``
- making room: ``empty_cache``, ``get_per_process_memory_fraction``, ``on_oom``, ``oom_callbacks``,
  ``set_per_process_memory_fraction``, ``sleep``, ``wake``
- what is held, and what happened: ``dump_snapshot``, ``get_memory_history``, ``handle_stats``, ``info``,
  ``memory_snapshot``, ``memory_stats``, ``memory_summary``, ``pinned_stats``, ``plot``, ``record_memory_history``,
  ``reset_peak_pinned_stats``, ``reset_peak_stats``
- programs in C and C++: ``c_api``, ``get_include``, ``get_library``
- errors: ``Asleep``, ``Error``, ``Forked``, ``InternalError``, ``InvalidValue``, ``LibraryError``,
  ``LibraryNotFound``, ``OutOfMemory``, ``PoolExhausted``, ``RuntimeUnavailable``, ``Unavailable``
"""

import importlib
import os
import sys

from gpupool import _logging, _native
from gpupool._native import (
    Asleep,
    DeviceBuffer,
    Error,
    Forked,
    HandlePool,
    InternalError,
    InvalidValue,
    LibraryError,
    LibraryNotFound,
    MemoryRange,
    MemPool,
    OutOfMemory,
    PinnedBuffer,
    PoolExhausted,
    RuntimeUnavailable,
    Stream,
    Unavailable,
    attach,
    available_memory,
    c_api,
    claim,
    cublas,
    cublaslt,
    cudnn,
    cudss,
    current_device,
    current_stream,
    cusolver,
    cusparse,
    cusparselt,
    custatevec,
    cutensor,
    cutensornet,
    device_count,
    empty,
    empty_cache,
    empty_pinned,
    enable_peer_access,
    get_memory_history,
    get_per_process_memory_fraction,
    get_pinned_limit,
    graph_pool_handle,
    handle_stats,
    hipblas,
    hipblaslt,
    hipsolver,
    hipsparse,
    memory_snapshot,
    memory_stats,
    miopen,
    neighbours,
    on_oom,
    oom_callbacks,
    peers,
    pinned_stats,
    record_memory_history,
    reset_peak_pinned_stats,
    reset_peak_stats,
    runtime,
    set_neighbour,
    set_per_process_memory_fraction,
    set_pinned_limit,
    simulated,
    sleep,
    stream,
    synchronize,
    use_mem_pool,
    wake,
    warm_pinned,
)
from gpupool._native import (
    __version__ as __version__,
)

# Type checkers take this for True; the typing module takes longer to import than it is worth here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpupool._notebook.plot import plot
    from gpupool._report.info import info
    from gpupool._report.summary import memory_summary
    from gpupool._traces.dump import dump_snapshot

# Grouped by purpose, as in `help(gpupool)` and the guide.
__all__ = [  # noqa: RUF022
    # Libraries' handles.
    "HandlePool",
    "cublas",
    "cublaslt",
    "cudnn",
    "cudss",
    "cusolver",
    "cusparse",
    "cusparselt",
    "custatevec",
    "cutensor",
    "cutensornet",
    "hipblas",
    "hipblaslt",
    "hipsolver",
    "hipsparse",
    "miopen",
    "simulated",
    # Device memory.
    "DeviceBuffer",
    "MemPool",
    "MemoryRange",
    "empty",
    "graph_pool_handle",
    "use_mem_pool",
    # Pinned memory of the host.
    "PinnedBuffer",
    "empty_pinned",
    "get_pinned_limit",
    "set_pinned_limit",
    "warm_pinned",
    # Devices and streams.
    "Stream",
    "current_device",
    "current_stream",
    "device_count",
    "enable_peer_access",
    "peers",
    "runtime",
    "stream",
    "synchronize",
    # Other processes.
    "attach",
    "available_memory",
    "claim",
    "neighbours",
    "set_neighbour",
    # Making room.
    "empty_cache",
    "get_per_process_memory_fraction",
    "on_oom",
    "oom_callbacks",
    "set_per_process_memory_fraction",
    "sleep",
    "wake",
    # What is held, and what happened.
    "dump_snapshot",
    "get_memory_history",
    "handle_stats",
    "info",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "pinned_stats",
    "plot",
    "record_memory_history",
    "reset_peak_pinned_stats",
    "reset_peak_stats",
    # Programs in C and C++.
    "c_api",
    "get_include",
    "get_library",
    # Errors.
    "Asleep",
    "Error",
    "Forked",
    "InternalError",
    "InvalidValue",
    "LibraryError",
    "LibraryNotFound",
    "OutOfMemory",
    "PoolExhausted",
    "RuntimeUnavailable",
    "Unavailable",
]

# The folders where wheels of NVIDIA's libraries may be, searched when a library is first needed. Those of the standard
# library hold none.
_standard = os.path.dirname(os.__file__)
_native.add_site_packages(
    [
        folder
        for folder in sys.path
        if folder not in ("", _standard, os.path.join(_standard, "lib-dynload")) and not folder.endswith(".zip")
    ]
)

_logging.start()

# Public modules that are imported when first used: one for each framework, and others that few programs need.
_MODULES = (
    *("cuda_core", "cupy", "dask", "numba", "nvmath", "onnxruntime", "prometheus", "ray", "rmm"),
    *("torch", "typing", "warp", "worker"),
)
# Public names and the private modules that define them, which are imported when first used.
_NAMES = {
    "dump_snapshot": "_traces.dump",
    "info": "_report.info",
    "memory_summary": "_report.summary",
    "plot": "_notebook.plot",
}


def get_include() -> str:
    """Return the folder of ``gpupool.h``, which declares the C functions behind ``gpupool.c_api.capsule``.

    The headers for C++ are there too: ``gpupool.hpp``, ``gpupool_handles.hpp`` for libraries' handles,
    ``gpupool_callbacks.hpp`` for callbacks, and ``gpupool_mr.hpp`` and ``gpupool_rmm.hpp`` for CCCL and RMM.

    >>> os.path.exists(os.path.join(gpupool.get_include(), "gpupool.h"))
    True
    """
    return os.path.join(os.path.dirname(__file__), "include")


def get_library() -> str:
    """Return the path of ``libgpupool.so.0``, the library for programs in C and C++ without Python.

    Next to it are ``pkgconfig`` and ``cmake/gpupool``, for building with pkg-config or CMake. A library that is
    linked to it and loaded into a process that has imported gpupool shares the memory of this package.

    Raises:
        LibraryNotFound: gpupool was installed from source, without the library, which `make library` builds in a clone.
    """
    path = os.path.join(os.path.dirname(__file__), "lib", "libgpupool.so.0")
    if not os.path.exists(path):
        raise LibraryNotFound(
            f"{path} is missing, which comes with gpupool's wheel: install that; or run `make library` in a clone of "
            "gpupool, and then install gpupool from there"
        )
    return path


def __getattr__(name: str) -> "Any":
    if name in _MODULES:
        return importlib.import_module(f"gpupool.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"gpupool.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'gpupool' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
