"""Types of the arguments and results of gpupool's calls, for annotations.

The types of results are classes, such as :class:`MemoryStats`, whose objects only gpupool's calls make; the others are
not used at run time.

``StreamLike`` is any stream: a :class:`gpupool.Stream`, a stream of cuda.core, CuPy, PyTorch, Numba or any
object that has one of the attributes of the four classes here, or an address as an int. The ints 0 and 1 are the legacy
default stream of the thread's current device, and 2 is the thread's own default stream there.

``DeviceLike`` is a device: its ordinal from 0, among those that ``CUDA_VISIBLE_DEVICES`` leaves, or a ``torch.device``;
one without an index is the current device.

``PoolId`` is the id of a memory pool in the process, a pair of ints: ``(0, n)`` is a pool that the program created,
``(n, 0)`` one for graph capture, and ``(0, 0)`` the device's default pool. Ids are never reused.

``PageNumbers`` is a way to name pages of a :class:`gpupool.MemoryRange`: a sequence of their numbers, or an array of
integers.

``AllocatorLike`` is a custom source of memory for a :class:`gpupool.MemPool`: a pair of callables, a pair of addresses
of C functions, or a PyTorch allocator.

>>> import gpupool
>>> from gpupool.typing import StreamLike
>>> def scratch(nbytes: int, stream: StreamLike | None = None) -> gpupool.DeviceBuffer:
...     return gpupool.empty(nbytes, stream)
>>> scratch(1000).nbytes
1000
"""

import importlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeAlias

from gpupool._native import (
    CApi,
    Capture,
    DiscardCallback,
    GraphMemory,
    HandleStats,
    Lease,
    MemoryClaim,
    MemoryStats,
    Neighbour,
    NeighbourPool,
    OomCallback,
    PoolScope,
    PoolStats,
    PoolToken,
    SegmentCallback,
    SegmentEvent,
    ShareToken,
    StreamScope,
)

if TYPE_CHECKING:
    from gpupool._notebook.plot import Plot
    from gpupool._report.info import Info
    from gpupool._report.summary import MemorySummary

__all__ = [
    "AllocatorLike",
    "CApi",
    "Capture",
    "CuPyStream",
    "CudaStream",
    "DeviceLike",
    "DiscardCallback",
    "GraphMemory",
    "HandleStats",
    "Info",
    "Lease",
    "MemoryClaim",
    "MemoryStats",
    "MemorySummary",
    "Neighbour",
    "NeighbourPool",
    "NumbaStream",
    "OomCallback",
    "PageNumbers",
    "Plot",
    "PoolId",
    "PoolScope",
    "PoolStats",
    "PoolToken",
    "SegmentCallback",
    "SegmentEvent",
    "ShareToken",
    "StreamLike",
    "StreamScope",
    "TorchDevice",
    "TorchPluggableAllocator",
    "TorchRawAllocator",
    "TorchStream",
]

# Results of calls in Python, and the private modules that define them, which are imported when first used.
_MODULES = {"Info": "_report.info", "MemorySummary": "_report.summary", "Plot": "_notebook.plot"}


class CudaStream(Protocol):
    """A stream with ``__cuda_stream__``: gpupool's own, cuda.core's and those of newer frameworks.

    See https://nvidia.github.io/cuda-python/cuda-core/latest/interoperability.html
    """

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return version 0 of the protocol and the stream's address."""
        ...


class TorchStream(Protocol):
    """A stream of PyTorch, ``torch.cuda.Stream``.

    See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams
    """

    @property
    def cuda_stream(self) -> int:
        """The stream's address."""
        ...


class CuPyStream(Protocol):
    """A stream of CuPy, ``cupy.cuda.Stream``.

    See https://docs.cupy.dev/en/stable/reference/generated/cupy.cuda.Stream.html
    """

    @property
    def ptr(self) -> int:
        """The stream's address."""
        ...


class NumbaStream(Protocol):
    """A stream of Numba, ``numba.cuda.stream()``.

    See https://nvidia.github.io/numba-cuda/reference/host.html
    """

    @property
    def handle(self) -> Any:
        """The stream's address, as a ctypes pointer or an int."""
        ...


class TorchDevice(Protocol):
    """A device of PyTorch, ``torch.device``.

    See https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.device
    """

    @property
    def index(self) -> int | None:
        """The device's ordinal; None is the current device."""
        ...


class TorchPluggableAllocator(Protocol):
    """An allocator of PyTorch's, ``torch.cuda.memory.CUDAPluggableAllocator``.

    See https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.CUDAPluggableAllocator.html
    """

    def allocator(self) -> Any:
        """Return the allocator in C++, a :class:`TorchRawAllocator`."""
        ...


class TorchRawAllocator(Protocol):
    """What ``allocator()`` of a :class:`TorchPluggableAllocator` returns."""

    def _pybind11_conduit_v1_(self, platform: bytes, type_info: Any, kind: bytes, /) -> Any: ...


StreamLike: TypeAlias = int | CudaStream | TorchStream | CuPyStream | NumbaStream
"""A stream: an object of a framework's, or an address as an int, of which 0, 1 and 2 are the default streams."""

DeviceLike: TypeAlias = SupportsIndex | TorchDevice
"""A device: its ordinal from 0, or a ``torch.device``."""

PageNumbers: TypeAlias = Iterable[SupportsIndex]
"""Pages of a memory range: their numbers, in a sequence or an array of integers."""

PoolId: TypeAlias = tuple[int, int]
"""A pool of memory: ``(0, n)`` made by the program, ``(n, 0)`` for graph capture, ``(0, 0)`` the default pool."""

AllocatorLike: TypeAlias = (
    tuple[int, int]
    | tuple[Callable[[int, int, int], int], Callable[[int, int, int, int], Any]]
    | TorchPluggableAllocator
    | TorchRawAllocator
)
"""Where a pool takes its memory from: ``malloc(size, device, stream)`` and ``free(address, size, device, stream)``, as
callables or addresses of C functions, or an allocator of PyTorch's."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"gpupool.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'gpupool.typing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
