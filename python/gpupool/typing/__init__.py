"""Types of what gpupool's calls take and return, for annotations; nothing at run time asks for them.

``StreamLike`` is whatever names a stream: a :class:`gpupool.Stream`, a stream of cuda.core, CuPy, PyTorch, Numba or any
object that has one of the attributes of the four classes here, or an address as an int. The ints 0 and 1 are the legacy
default stream of the thread's current device, and 2 is the thread's own default stream there.

``DeviceLike`` is whatever names a device: its ordinal from 0, as ``CUDA_VISIBLE_DEVICES`` leaves them, or a
``torch.device``, of which one without an index is the current device.

``PoolId`` is what identifies a pool of memory in the process, a pair of ints: ``(0, n)`` is a pool that the program
made, ``(n, 0)`` one for graph capture, and ``(0, 0)`` the device's default pool. No later pool gets an id again.

``AllocatorLike`` is where a :class:`gpupool.MemPool` may take its memory from: a pair of callables, a pair of addresses
of C functions, or an allocator of PyTorch's.

>>> import gpupool
>>> from gpupool.typing import StreamLike
>>> def scratch(nbytes: int, stream: StreamLike | None = None) -> gpupool.DeviceBuffer:
...     return gpupool.empty(nbytes, stream)
>>> scratch(1000).nbytes
1000
"""

from collections.abc import Callable
from typing import Any, Protocol, SupportsIndex, TypeAlias

__all__ = [
    "AllocatorLike",
    "CuPyStream",
    "CudaStream",
    "DeviceLike",
    "NumbaStream",
    "PoolId",
    "StreamLike",
    "TorchDevice",
    "TorchPluggableAllocator",
    "TorchRawAllocator",
    "TorchStream",
]


class CudaStream(Protocol):
    """A stream with ``__cuda_stream__``: gpupool's own, cuda.core's and those of newer frameworks.

    See https://nvidia.github.io/cuda-python/cuda-core/latest/interoperability.html
    """

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return version 0 of the protocol and the stream's address."""
        ...


class TorchStream(Protocol):
    """A stream of PyTorch's, ``torch.cuda.Stream``.

    See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams
    """

    @property
    def cuda_stream(self) -> int:
        """The stream's address."""
        ...


class CuPyStream(Protocol):
    """A stream of CuPy's, ``cupy.cuda.Stream``.

    See https://docs.cupy.dev/en/stable/reference/generated/cupy.cuda.Stream.html
    """

    @property
    def ptr(self) -> int:
        """The stream's address."""
        ...


class NumbaStream(Protocol):
    """A stream of Numba's, ``numba.cuda.stream()``.

    See https://nvidia.github.io/numba-cuda/reference/host.html
    """

    @property
    def handle(self) -> Any:
        """The stream's address, as a ctypes pointer or an int."""
        ...


class TorchDevice(Protocol):
    """A device of PyTorch's, ``torch.device``.

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


def __dir__() -> list[str]:
    return sorted(__all__)
