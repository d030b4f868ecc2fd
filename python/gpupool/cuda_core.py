"""cuda.core's memory from gpupool: ``gpupool.cuda_core.enable()``, or a ``MemoryResource`` wherever one is taken.

cuda.core has a ``Device`` object for each thread, and each has a memory resource of its own. So every thread that calls
``device.allocate`` enables gpupool for itself, as it calls ``device.set_current``; a pool of threads does it by its
initializer:

>>> ThreadPoolExecutor(16, initializer=gpupool.cuda_core.enable)

cuda.core has no current stream and names one in every call, so calls of gpupool's that name none follow none of its.

https://nvidia.github.io/cuda-python/cuda-core/latest/api.html
"""

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpupool._frameworks import plug as _plug
from gpupool._native import DeviceBuffer, InvalidValue, MemPool, use_mem_pool

if TYPE_CHECKING:
    from gpupool._frameworks.cuda_core_resource import MemoryResource as MemoryResource

# The one resource of each device, for all threads.
_resources: dict[int, Any] = {}
_lock = threading.Lock()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.devices: set[int] = set()


_thread = _Thread()


def _core() -> Any:
    # From 1.2 on a buffer is told the stream that frees it.
    return _plug.require("cuda.core", (1, 2), "cuda-core")


def __getattr__(name: str) -> Any:
    if name == "MemoryResource":
        _core()
        return importlib.import_module("gpupool._frameworks.cuda_core_resource").MemoryResource
    raise AttributeError(f"module 'gpupool.cuda_core' has no attribute {name!r}")


def enable(device: Any = None) -> None:
    """Let ``Device(device).memory_resource`` of the calling thread be gpupool's; again does nothing.

    ``device`` is an ordinal or a ``cuda.core.Device``, by default the thread's current one. Raises LibraryNotFound if
    cuda.core is missing or too old.
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
    """Let it be a ``DeviceMemoryResource`` of cuda.core's again; nothing where :func:`enable` was not called."""
    core = _core()
    device = core.Device(device)
    if device.device_id in _thread.devices:
        device.memory_resource = core.DeviceMemoryResource(device)
        _thread.devices.discard(device.device_id)


@contextmanager
def using(pool: MemPool) -> Iterator[MemPool]:
    """``with using(pool):`` lets this thread's ``device.allocate`` take from the pool; it calls :func:`enable`."""
    enable(pool.device)
    with use_mem_pool(pool):
        yield pool


def to_buffer(buffer: DeviceBuffer) -> Any:
    """Return a ``cuda.core.Buffer`` of the same memory, which keeps ``buffer`` alive, its ``owner``.

    The memory is freed when both are gone, in the order of the stream on which it was allocated.
    """
    return _core().Buffer.from_handle(buffer.ptr, buffer.nbytes, owner=buffer)


def from_buffer(buffer: Any) -> DeviceBuffer:
    """Return the buffer of gpupool's that a ``cuda.core.Buffer`` is made of, without a copy.

    The memory then lives until both are gone. Raises InvalidValue for memory that is not gpupool's, and for a closed
    buffer; other frameworks take such memory as it is, by ``__dlpack__``.
    """
    if isinstance(buffer.owner, DeviceBuffer):
        return buffer.owner
    resource = buffer.memory_resource
    if resource is not None and isinstance(resource, __getattr__("MemoryResource")):
        found = resource.device_buffer(int(buffer.handle))
        if isinstance(found, DeviceBuffer):
            return found
    raise InvalidValue(
        f"{buffer} has no memory of gpupool's; frameworks take a cuda.core.Buffer as it is, for instance "
        "cupy.from_dlpack(buffer)"
    )
