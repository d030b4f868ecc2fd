"""Ready handles of cuDNN, cuBLAS, cuSPARSE and others, and of ROCm's libraries, and a caching allocator.

>>> import gpupool
>>> stream = gpupool.Stream()  # or one of CuPy, PyTorch, Numba, cuda.core
>>> buffer = gpupool.empty(1 << 20, stream)  # device memory from a caching allocator, freed in stream order
>>> handle = gpupool.simulated.handle(stream)  # this thread's handle; on a GPU use gpupool.cublas.handle(stream) etc.

A thread keeps its handles until it ends; then they return to the pool, and the next thread gets them. Importing this
package loads no GPU library: that happens at the first call that needs one.
"""

import importlib
import os
import sys

from gpupool import _logging, _native
from gpupool._native import (
    Asleep,
    CApi,
    Capture,
    Claim,
    DeviceBuffer,
    DiscardCallback,
    Error,
    Forked,
    GraphMemory,
    HandlePool,
    HandleStats,
    InternalError,
    InvalidValue,
    Lease,
    LibraryError,
    LibraryNotFound,
    MemoryRange,
    MemoryStats,
    MemPool,
    Neighbour,
    NeighbourPool,
    OomCallback,
    OutOfMemory,
    PinnedBuffer,
    PoolExhausted,
    PoolScope,
    PoolStats,
    PoolToken,
    RuntimeUnavailable,
    SegmentCallback,
    SegmentEvent,
    ShareToken,
    Stream,
    StreamScope,
    Unavailable,
    __version__,
    attach,
    available_memory,
    begin_allocate_to_pool,
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
    end_allocate_to_pool,
    get_memory_history,
    get_memory_limit,
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
    pool_use_count,
    record_memory_history,
    release_pool,
    reset_peak_memory_stats,
    reset_peak_pinned_stats,
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

# Type checkers take this for True; the typing module takes longer to import than it is worth here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpupool._notebook.plot import Plot, plot
    from gpupool._report.info import Info, info
    from gpupool._report.summary import MemorySummary, memory_summary
    from gpupool._traces.dump import dump_snapshot

__all__ = [
    "Asleep",
    "CApi",
    "Capture",
    "Claim",
    "DeviceBuffer",
    "DiscardCallback",
    "Error",
    "Forked",
    "GraphMemory",
    "HandlePool",
    "HandleStats",
    "Info",
    "InternalError",
    "InvalidValue",
    "Lease",
    "LibraryError",
    "LibraryNotFound",
    "MemPool",
    "MemoryRange",
    "MemoryStats",
    "MemorySummary",
    "Neighbour",
    "NeighbourPool",
    "OomCallback",
    "OutOfMemory",
    "PinnedBuffer",
    "Plot",
    "PoolExhausted",
    "PoolScope",
    "PoolStats",
    "PoolToken",
    "RuntimeUnavailable",
    "SegmentCallback",
    "SegmentEvent",
    "ShareToken",
    "Stream",
    "StreamScope",
    "Unavailable",
    "__version__",
    "attach",
    "available_memory",
    "begin_allocate_to_pool",
    "c_api",
    "claim",
    "cublas",
    "cublaslt",
    "cudnn",
    "cudss",
    "current_device",
    "current_stream",
    "cusolver",
    "cusparse",
    "cusparselt",
    "custatevec",
    "cutensor",
    "cutensornet",
    "device_count",
    "dump_snapshot",
    "empty",
    "empty_cache",
    "empty_pinned",
    "enable_peer_access",
    "end_allocate_to_pool",
    "get_include",
    "get_library",
    "get_memory_history",
    "get_memory_limit",
    "get_per_process_memory_fraction",
    "get_pinned_limit",
    "graph_pool_handle",
    "handle_stats",
    "hipblas",
    "hipblaslt",
    "hipsolver",
    "hipsparse",
    "info",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "miopen",
    "neighbours",
    "on_oom",
    "oom_callbacks",
    "peers",
    "pinned_stats",
    "plot",
    "pool_use_count",
    "record_memory_history",
    "release_pool",
    "reset_peak_memory_stats",
    "reset_peak_pinned_stats",
    "runtime",
    "set_neighbour",
    "set_per_process_memory_fraction",
    "set_pinned_limit",
    "simulated",
    "sleep",
    "stream",
    "synchronize",
    "use_mem_pool",
    "wake",
    "warm_pinned",
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
    *("cuda_core", "cupy", "dask", "numba", "nvmath", "onnxruntime", "prometheus", "ray", "rmm", "tensorrt"),
    *("torch", "typing", "warp", "worker"),
)
# Public names and the private modules that define them, which are imported when first used.
_NAMES = {
    "Info": "_report.info",
    "MemorySummary": "_report.summary",
    "Plot": "_notebook.plot",
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
