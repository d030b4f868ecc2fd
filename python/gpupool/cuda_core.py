"""cuda.core's memory from gpupool: ``gpupool.cuda_core.enable()``, or a ``MemoryResource`` to pass to cuda.core.

In cuda.core each thread has its own ``Device`` object with its own memory resource. So enable gpupool in every thread
that calls ``device.allocate``, as you call ``device.set_current`` there; in a thread pool use the initializer:

>>> ThreadPoolExecutor(16, initializer=gpupool.cuda_core.enable)

Pinned host memory is a separate resource:

>>> resource = gpupool.cuda_core.PinnedMemoryResource()
>>> buffer = resource.allocate(1 << 20, stream=stream)  # numpy.from_dlpack(buffer) is the host's view of it

cuda.core has no current stream and takes one in every call, so calls of gpupool without a stream do not use a stream of
cuda.core.

https://nvidia.github.io/cuda-python/cuda-core/latest/api.html
"""

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpupool._frameworks import plug as _plug
from gpupool._native import DeviceBuffer, InvalidValue, MemPool, PinnedBuffer, PoolToken

if TYPE_CHECKING:
    from gpupool._frameworks.cuda_core_pinned import PinnedMemoryResource as PinnedMemoryResource
    from gpupool._frameworks.cuda_core_resource import MemoryResource as MemoryResource

__all__ = [
    "MemoryResource",
    "PinnedMemoryResource",
    "disable",
    "enable",
    "from_buffer",
    "is_enabled",
    "to_buffer",
    "using",
]

# 1.2 is the first cuda.core that tells a buffer the stream that frees it.
_NEEDED = ("cuda.core", (1, 2), "cuda-core")

# The resource of each device, which all threads share.
_resources: dict[int, Any] = {}
_lock = threading.Lock()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.devices: set[int] = set()


_thread = _Thread()


def _core() -> Any:
    return _plug.require(*_NEEDED)


def __getattr__(name: str) -> Any:
    modules = {"MemoryResource": "cuda_core_resource", "PinnedMemoryResource": "cuda_core_pinned"}
    if name in modules:
        _plug.require_name(*_NEEDED)
        return getattr(importlib.import_module(f"gpupool._frameworks.{modules[name]}"), name)
    raise AttributeError(f"module 'gpupool.cuda_core' has no attribute {name!r}")


def enable(device: Any = None) -> None:
    """Set ``Device(device).memory_resource`` of the calling thread to gpupool's; a second call does nothing.

    Args:
        device: An ordinal or a ``cuda.core.Device``; the thread's current device by default.

    Raises:
        gpupool.LibraryNotFound: cuda.core is missing or too old.
    """
    device = _core().Device(device)
    make = __getattr__("MemoryResource")
    ordinal = device.device_id
    with _lock:
        if ordinal not in _resources:
            _resources[ordinal] = make(ordinal)
    device.memory_resource = _resources[ordinal]
    _thread.devices.add(ordinal)


def disable(device: Any = None) -> None:
    """Set ``Device(device).memory_resource`` to a ``DeviceMemoryResource`` of cuda.core again.

    This does nothing if :func:`enable` was not called.
    """
    core = _core()
    device = core.Device(device)
    if device.device_id in _thread.devices:
        device.memory_resource = core.DeviceMemoryResource(device)
        _thread.devices.discard(device.device_id)


def is_enabled(device: Any = None) -> bool:
    """Return True in a thread after :func:`enable` for this device, until :func:`disable`.

    Args:
        device: An ordinal or a ``cuda.core.Device``; the thread's current device by default.
    """
    return bool(_thread.devices) and _core().Device(device).device_id in _thread.devices


@contextmanager
def using(pool: MemPool | PoolToken | None = None) -> Iterator[Any]:
    """Enable gpupool and let this thread's ``device.allocate`` use the pool, for a ``with`` block, which gets the pool.

    Args:
        pool: A MemPool, or its ``token()`` in other threads than its own; None for gpupool's default memory, or for the
            pool whose scope the thread is in.
    """
    enable(None if pool is None else _plug.device_of(pool))
    with _plug.scope(pool):
        yield pool


def to_buffer(buffer: DeviceBuffer | PinnedBuffer) -> Any:
    """Return a ``cuda.core.Buffer`` of the same memory, which keeps ``buffer`` alive as its ``owner``.

    The memory is freed when both are gone, in the order of the stream on which it was allocated; pinned memory in the
    order of the streams that it was recorded on.
    """
    if not isinstance(buffer, DeviceBuffer | PinnedBuffer):
        raise _plug.wrong("buffer", buffer, "a DeviceBuffer or a PinnedBuffer of gpupool")
    return _core().Buffer.from_handle(buffer.ptr, buffer.nbytes, owner=buffer)


def from_buffer(buffer: Any) -> DeviceBuffer | PinnedBuffer:
    """Return the gpupool buffer that a ``cuda.core.Buffer`` is made of, without a copy.

    The memory then lives until both are gone. To pass memory that is not gpupool's to other frameworks, use
    ``__dlpack__``.

    Raises:
        gpupool.InvalidValue: The memory is not gpupool's, or the buffer is closed.
    """
    if not isinstance(buffer, _core().Buffer):
        raise _plug.wrong("buffer", buffer, "a cuda.core.Buffer")
    if isinstance(buffer.owner, DeviceBuffer | PinnedBuffer):
        return buffer.owner
    resource = buffer.memory_resource
    found = None
    if resource is not None and isinstance(resource, __getattr__("MemoryResource")):
        found = resource.device_buffer(int(buffer.handle))
    elif resource is not None and isinstance(resource, __getattr__("PinnedMemoryResource")):
        found = resource.pinned_buffer(int(buffer.handle))
    if isinstance(found, DeviceBuffer | PinnedBuffer):
        return found
    raise InvalidValue(
        f"{buffer} has no memory of gpupool's; frameworks take a cuda.core.Buffer as it is, for instance "
        "cupy.from_dlpack(buffer)"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
