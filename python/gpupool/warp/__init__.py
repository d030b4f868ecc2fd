"""Warp's arrays in gpupool's memory: ``gpupool.warp.enable()``, at any time.

>>> import gpupool.warp
>>> gpupool.warp.enable()  # from here on every array of the process on a GPU; Warp's code stays as it is

>>> pool = gpupool.MemPool(limit=8 << 30)
>>> with gpupool.warp.using(pool):  # this thread's arrays, from a private pool
...     a = wp.zeros(1000, dtype=float)

An array is allocated on the current stream of its device. Its memory is freed, as by Warp's own allocator, after all
work so far on the device's blocking streams, so that an array may die while any stream of Warp uses it; the host does
not wait. Arrays that exist when the allocator changes keep their memory.

Graphs need no change: an array that is allocated in a capture keeps its memory until both the array and the
``wp.Graph`` are gone. Calls of gpupool without a stream use Warp's current one.

Memory that Warp's native code allocates for itself, such as for ``wp.Mesh``, ``wp.HashGrid`` and sorting, does not come
from Warp's allocator, nor does pinned memory.

https://nvidia.github.io/warp/stable/api_reference/_generated/warp.Allocator.html
"""

import importlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gpupool._frameworks import plug as _plug
from gpupool._native import MemPool, PoolToken, RuntimeUnavailable, runtime

__all__ = ["disable", "enable", "is_enabled", "using"]

# The first Warp with allocators of users.
_NEEDED = ("warp", (1, 13), "warp-lang")

_lock = threading.Lock()
_enabled = False
# How many blocks of `using` there are, in all threads: Warp has one allocator of a device for all of them.
_blocks = 0
# The allocator of each device, by its ordinal; arrays refer to them for good.
_allocators: dict[int, Any] = {}
# What each device had before: another allocator, or None for Warp's own.
_former: dict[int, Any] = {}


def _warp() -> Any:
    return _plug.require(*_NEEDED)


def _current_stream(device: int) -> int:
    return _warp().get_cuda_device(device).stream.cuda_stream or 0


def _devices(warp: Any) -> list[Any]:
    """Return Warp's devices.

    Raises:
        RuntimeUnavailable: There is none, or gpupool's devices are not CUDA's.
    """
    if runtime() != "cuda":
        raise RuntimeUnavailable(
            f"gpupool's runtime is {runtime()}, whose memory Warp's kernels cannot use; unset GPUPOOL_RUNTIME"
        )
    devices = list(warp.get_cuda_devices())
    if not devices:
        raise RuntimeUnavailable(
            "Warp finds no CUDA device, though gpupool does: what wp.init() prints says which driver Warp needs"
        )
    return devices


def _place() -> None:
    """Set the allocator of every device to gpupool's, or of none, and note those that there were."""
    warp = _warp()
    devices = _devices(warp)
    make = importlib.import_module("gpupool.warp._allocator").Allocator
    with ExitStack() as undo:
        for device in devices:
            if device.ordinal not in _allocators:
                _allocators[device.ordinal] = make(device)
            own, current = _allocators[device.ordinal], warp.get_device_allocator(device)
            if current is not own:
                warps = (device.default_allocator, device.mempool_allocator)
                _former[device.ordinal] = None if any(current is each for each in warps) else current
                undo.callback(warp.set_device_allocator, device, _former[device.ordinal])
                warp.set_device_allocator(device, own)
        undo.pop_all()


def _take_away() -> None:
    """Set the allocators that there were, where no other code has set another since."""
    warp = _warp()
    for device in warp.get_cuda_devices():
        if warp.get_device_allocator(device) is _allocators.get(device.ordinal):
            warp.set_device_allocator(device, _former.get(device.ordinal))


def enable() -> None:
    """Let Warp allocate the arrays of all CUDA devices from gpupool, in all threads; a second call changes nothing.

    Calls of gpupool without a stream use Warp's current one. This initializes Warp, so set ``wp.config`` before.

    Raises:
        gpupool.LibraryNotFound: Warp is missing or too old.
        gpupool.RuntimeUnavailable: Warp finds no CUDA device, or gpupool's devices are simulated or AMD's.

    See https://nvidia.github.io/warp/stable/api_reference/_generated/warp.set_device_allocator.html
    """
    global _enabled
    with _lock:
        _place()
        _plug.follow(_current_stream)
        _enabled = True


def disable() -> None:
    """Let Warp allocate as it did before :func:`enable`; a second call does nothing.

    Existing arrays keep gpupool's memory until they die. An allocator that other code has set meanwhile stays, and in
    a block of :func:`using` gpupool's does until its end.
    """
    global _enabled
    with _lock:
        if not _enabled:
            return
        if not _blocks:
            _take_away()
        _plug.unfollow(_current_stream)
        _enabled = False


def is_enabled() -> bool:
    """Return True after :func:`enable`, until :func:`disable`."""
    return _enabled


def _begin_block() -> None:
    global _blocks
    with _lock:
        if not _enabled and not _blocks:
            _place()
        _blocks += 1


def _end_block() -> None:
    global _blocks
    with _lock:
        _blocks -= 1
        if not _enabled and not _blocks:
            _take_away()


@contextmanager
def using(pool: MemPool | PoolToken | None = None) -> Iterator[Any]:
    """Let this thread's arrays come from the pool, enabled or not, for a ``with`` block, which gets the pool.

    The pool belongs to one device: on others the default pool is used. Warp has one allocator of a device for all
    threads, so that during the block arrays of other threads come from gpupool too, from its default memory.

    Args:
        pool: A MemPool, or its ``token()`` in other threads than its own; None for gpupool's default memory, or for the
            pool whose scope the thread is in.

    Raises:
        gpupool.LibraryNotFound: As for :func:`enable`.
        gpupool.RuntimeUnavailable: As for :func:`enable`.
        gpupool.InvalidValue: The argument is not a pool.
    """
    with _plug.scope(pool):
        _begin_block()
        try:
            yield pool
        finally:
            _end_block()


def __dir__() -> list[str]:
    return sorted(__all__)
