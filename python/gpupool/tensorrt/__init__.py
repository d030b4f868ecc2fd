"""TensorRT's device memory from gpupool: an allocator for ``gpu_allocator`` and ``temporary_allocator``.

>>> pool = gpupool.MemPool(limit=8 << 30)
>>> runtime.gpu_allocator = gpupool.tensorrt.Allocator(pool)

TensorRT calls an allocator of its Python package through Python, under the GIL. A program in C++ has the same without
Python, by ``gpupool_tensorrt.hpp``.

https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api/infer/Core/GpuAllocator.html
"""

import importlib
from typing import TYPE_CHECKING, Any

from gpupool._frameworks import plug as _plug

if TYPE_CHECKING:
    from gpupool.tensorrt._allocator import Allocator as Allocator

__all__ = ["Allocator"]

# The first TensorRT with IGpuAsyncAllocator.
_NEEDED = ("tensorrt", (10,), "tensorrt")


def __getattr__(name: str) -> Any:
    if name == "Allocator":
        _plug.require_name(*_NEEDED)
        return importlib.import_module("gpupool.tensorrt._allocator").Allocator
    raise AttributeError(f"module 'gpupool.tensorrt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
