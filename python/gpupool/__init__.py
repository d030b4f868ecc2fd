"""A ready handle of cuDNN, cuSPARSE, cuDSS, cuBLAS, cuBLASLt or cuSOLVER for each thread, on each device.

>>> import gpupool
>>> handle = gpupool.cublas.handle(stream)  # this thread's cublasHandle_t as an int, its stream set

A thread keeps its handles until it ends; then they go back to the pool, and the next thread gets them. Importing this
package loads no GPU library: that happens at the first call that needs one.
"""

import os
import sys

from gpupool import _native
from gpupool._native import (
    Error,
    Forked,
    HandlePool,
    HandleStats,
    InvalidValue,
    LibraryError,
    LibraryNotFound,
    OutOfMemory,
    RuntimeUnavailable,
    Stream,
    StreamScope,
    __version__,
    cublas,
    cublaslt,
    cudnn,
    cudss,
    current_device,
    cusolver,
    cusparse,
    device_count,
    host,
    runtime,
    stream,
)

__all__ = [
    "Error",
    "Forked",
    "HandlePool",
    "HandleStats",
    "InvalidValue",
    "LibraryError",
    "LibraryNotFound",
    "OutOfMemory",
    "RuntimeUnavailable",
    "Stream",
    "StreamScope",
    "__version__",
    "cublas",
    "cublaslt",
    "cudnn",
    "cudss",
    "current_device",
    "cusolver",
    "cusparse",
    "device_count",
    "host",
    "runtime",
    "stream",
]

# Where the wheels of the NVIDIA libraries may be, looked at when a library is first needed. The standard library's own
# folders hold none.
_standard = os.path.dirname(os.__file__)
_native.add_site_packages(
    [
        folder
        for folder in sys.path
        if folder not in ("", _standard, os.path.join(_standard, "lib-dynload")) and not folder.endswith(".zip")
    ]
)
