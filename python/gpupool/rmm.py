"""RMM and gpupool, in both directions: RMM allocates from gpupool, or a MemPool from an RMM resource.

>>> gpupool.rmm.enable()  # what RMM allocates for cuDF, cuML, ... comes from gpupool

>>> upstream = gpupool.rmm.resource()  # or a resource, to stack RMM's adaptors on it
>>> rmm.mr.set_current_device_resource(rmm.mr.StatisticsResourceAdaptor(upstream))

>>> pool = gpupool.MemPool(allocator=gpupool.rmm.allocator(rmm.mr.CudaAsyncMemoryResource()))

>>> pinned = gpupool.rmm.pinned_resource()  # in place of rmm.mr.PinnedHostMemoryResource()

RMM passes the stream of every allocation and deallocation, and gpupool uses it. With RMM 26.06 and later requests
run no Python code: a module for each version is in gpupool's wheel, or is compiled at first use. Without one, each
request takes the GIL and calls a Python function, and a warning says what is missing.

RMM's side is described at https://docs.rapids.ai/api/rmm/stable/
"""

import importlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import ModuleType
from typing import Any

from gpupool._compiled.cache import NoLibrary
from gpupool._frameworks import plug as _plug
from gpupool._native import (
    DeviceBuffer,
    Error,
    MemPool,
    PinnedBuffer,
    PoolToken,
    current_device,
    device_count,
    empty,
    empty_pinned,
)

__all__ = ["allocator", "disable", "enable", "is_enabled", "pinned_resource", "resource", "using"]

# The alignment that MemPool needs of its allocators; RMM's pools promise 256.
_ALIGNMENT = 512


def _rmm() -> ModuleType:
    # 25.12 is the first RMM that makes streams of any object with __cuda_stream__.
    return _plug.require("rmm", (25, 12), "rmm-cu13")


def _functions(
    make: Callable[[int, Any], DeviceBuffer | PinnedBuffer],
) -> tuple[Callable[[int, Any], int], Callable[[int, int, Any], None]]:
    buffers: dict[int, DeviceBuffer | PinnedBuffer] = {}

    def allocate(nbytes: int, stream: Any) -> int:
        buffer = make(nbytes, stream)
        address = buffer.ptr
        if address:
            buffers[address] = buffer
        return address

    def deallocate(address: int, nbytes: int, stream: Any) -> None:
        buffer = buffers.pop(address, None)
        # RMM cannot be told of failures here. A buffer that this stream cannot free is freed on its own, as it dies.
        if buffer is not None:
            with suppress(Error):
                buffer.free(stream)

    return allocate, deallocate


# RMM's C++ side has the functions' bare addresses, and may outlive its Python object: so they are made once, and stay.
_allocate, _deallocate = _functions(empty)
_allocate_pinned, _deallocate_pinned = _functions(empty_pinned)


_lock = threading.RLock()
# The module of _rmm/resource.pyx, once it was imported, for it stays in the process; False where there is none.
_module: Any = None


def _native_module() -> Any:
    """Return the module with resources in C++, or None; the first time it warns if there is none."""
    global _module
    with _lock:
        if _module is None:
            rmm = _rmm()
            try:
                _module = importlib.import_module("gpupool._rmm.library").load(rmm)
            except NoLibrary as reason:
                _module = False
                warnings.warn(
                    f"gpupool has no resource in C++ for RMM {rmm.__version__}: {reason}. Each request of RMM's runs "
                    "Python, which takes microseconds",
                    RuntimeWarning,
                    stacklevel=4,
                )
        return _module or None


def _made(name: str, device: int | None, *functions: Callable[..., Any]) -> Any:
    """Return a resource in C++, of a class of the module's; without the module one that calls the functions."""
    mr = _rmm().mr
    accepted = "a device's ordinal, or None"
    ordinal = current_device() if device is None else _plug.index_of("device", device, accepted)
    native = _native_module()
    return mr.CallbackMemoryResource(*functions) if native is None else getattr(native, name)(ordinal)


def resource(device: int | None = None) -> Any:
    """Return an RMM resource that allocates from gpupool, on the streams that callers pass.

    It follows the calling thread's scopes. When memory runs out RMM raises MemoryError with gpupool's message. The
    resource can be the upstream of RMM's adaptors and pools. Requests run no Python code; if that is not possible, a
    warning says why, and the resource is an ``rmm.mr.CallbackMemoryResource``.

    Args:
        device: The device, which must be current when the resource is used, as RMM requires; by default the one that is
            current now.

    Raises:
        gpupool.LibraryNotFound: RMM 25.12 or later is missing.

    See https://docs.rapids.ai/api/rmm/stable/python_api/
    """
    return _made("MemoryResource", device, _allocate, _deallocate)


def pinned_resource(device: int | None = None) -> Any:
    """Return an RMM resource with pinned memory, in place of ``rmm.mr.PinnedHostMemoryResource()``.

    The memory is on the NUMA node nearest to the device that is current when it is allocated, and is reused once
    the streams that it was allocated and deallocated on are done with it. When it runs out RMM raises MemoryError with
    gpupool's message. For C++ code, RMM declares resources from Python as device accessible, but not as host
    accessible.

    Args:
        device: The device of the streams; by default the current one.

    Raises:
        gpupool.LibraryNotFound: RMM 25.12 or later is missing.

    See https://docs.rapids.ai/api/rmm/stable/python_api/
    """
    return _made("PinnedMemoryResource", device, _allocate_pinned, _deallocate_pinned)


# The resource of each device that is enabled, and the one before it.
_enabled: dict[int, tuple[Any, Any]] = {}


def enable() -> None:
    """Let RMM allocate from gpupool on every device; a second call changes nothing.

    Call it before anything is allocated, as RMM requires of every program that changes its resources.

    Raises:
        gpupool.LibraryNotFound: RMM 25.12 or later is missing.
        gpupool.RuntimeUnavailable: There is no GPU.
    """
    _rmm()
    _enable_on(range(device_count()))


def _enable_on(devices: Iterable[int]) -> None:
    """Let RMM allocate from gpupool on these devices. No driver is started, and RMM takes numbers of no device too."""
    mr = _rmm().mr
    _native_module()
    new = {}
    with _lock, ExitStack() as undo:
        for device in devices:
            former = mr.get_per_device_resource(device)
            if device in _enabled and former is _enabled[device][0]:
                continue
            new[device] = resource(device), former
            undo.callback(mr.set_per_device_resource, device, former)
            mr.set_per_device_resource(device, new[device][0])
        undo.pop_all()
        _enabled.update(new)


def disable() -> None:
    """Let RMM allocate as it did before :func:`enable`; a second call does nothing.

    A resource that other code has set meanwhile stays. Allocated memory stays valid, and returns to gpupool.
    """
    with _lock:
        if not _enabled:
            return
        mr = _rmm().mr
        for device, (own, former) in _enabled.items():
            if mr.get_per_device_resource(device) is own:
                mr.set_per_device_resource(device, former)
        _enabled.clear()


def is_enabled() -> bool:
    """Return True after :func:`enable`, until :func:`disable`."""
    return bool(_enabled)


@contextmanager
def using(pool: MemPool | PoolToken | None = None) -> Iterator[Any]:
    """Enable gpupool and let what this thread allocates by RMM come from the pool, for a ``with`` block.

    The block gets the pool.

    Args:
        pool: A MemPool, or its ``token()`` in other threads than its own; None for gpupool's default memory, or for the
            pool whose scope the thread is in.
    """
    enable()
    with _plug.scope(pool):
        yield pool


class _Stream:
    """A stream's address, in the form in which RMM takes streams."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def _on(device: int, call: Callable[..., Any], *arguments: object) -> Any:
    """Call with the device current, as RMM requires, and make the thread's own device current again."""
    former = current_device()
    if former == device:
        return call(*arguments)
    # cuda.bindings is there, as RMM depends on it.
    runtime = importlib.import_module("cuda.bindings.runtime")
    _check(runtime, *runtime.cudaSetDevice(device))
    try:
        return call(*arguments)
    finally:
        _check(runtime, *runtime.cudaSetDevice(former))


def _check(runtime: ModuleType, status: Any) -> None:
    if status != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"cudaSetDevice failed: {status!r}")


def allocator(mr: Any) -> tuple[Callable[[int, int, int], int], Callable[[int, int, int, int], None]]:
    """Return the functions of an RMM resource for ``MemPool(allocator=...)``, which supply the pool's segments.

    Segments are allocated on the stream of the pool's caller. They are deallocated once the work with them is done, on
    the calling thread's default stream, because their own may have been destroyed by then.

    Args:
        mr: A resource of the pool's device, such as ``rmm.mr.CudaAsyncMemoryResource()`` or
            ``rmm.mr.get_current_device_resource()``; it is kept as long as the pool has memory. It cannot be a
            :func:`resource`: gpupool's own memory cannot supply gpupool.

    Raises:
        gpupool.LibraryNotFound: RMM 25.12 or later is missing.
    """
    _rmm()
    if not (callable(getattr(mr, "allocate", None)) and callable(getattr(mr, "deallocate", None))):
        raise _plug.wrong("mr", mr, "a resource of RMM, which has allocate and deallocate")
    streams = importlib.import_module("rmm.pylibrmm.stream")
    # The addresses of RMM's memory, by those of segments that start later in it to be aligned.
    shifted: dict[int, int] = {}

    def malloc(size: int, device: int, stream: int) -> int:
        on = streams.Stream(obj=_Stream(stream))
        address = int(_on(device, mr.allocate, size, on))
        if address % _ALIGNMENT == 0:
            return address
        _on(device, mr.deallocate, address, size, on)
        address = int(_on(device, mr.allocate, size + _ALIGNMENT, on))
        aligned = address + -address % _ALIGNMENT
        shifted[aligned] = address
        return aligned

    def free(address: int, size: int, device: int, stream: int) -> None:
        start = shifted.pop(address, None)
        on = streams.PER_THREAD_DEFAULT_STREAM
        if start is None:
            _on(device, mr.deallocate, address, size, on)
        else:
            _on(device, mr.deallocate, start, size + _ALIGNMENT, on)

    return malloc, free


def __dir__() -> list[str]:
    return sorted(__all__)
