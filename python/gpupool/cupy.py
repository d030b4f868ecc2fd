"""CuPy's memory, and on request its pinned memory and its library handles, from gpupool.

>>> import gpupool.cupy
>>> gpupool.cupy.enable()  # from here on every CuPy array of the process; CuPy's code stays as it is

>>> pool = gpupool.MemPool(limit=8 << 30)
>>> with gpupool.cupy.using(pool):  # this thread's allocations, from a private pool
...     a = cupy.zeros(1000)

An array is allocated on CuPy's current stream and device, and its memory is freed in the order of that stream when the
array dies, as with CuPy's own pool. Arrays that exist when the allocator changes keep their memory, which returns to
where it came from. Memory that CuPy's own pool has cached stays cached until
``cupy.get_default_memory_pool().free_all_blocks()`` is called, or memory runs out.

- **The pool's calls**: :func:`get_default_memory_pool` has CuPy's methods (``free_all_blocks``, ``used_bytes``,
  ``set_limit``, ...) over gpupool's memory; CuPy's function of that name still means CuPy's own pool.
- **Limits**: ``CUPY_GPU_MEMORY_LIMIT`` and ``set_limit`` limit what gpupool reserves on a device, for other frameworks
  that use it too. To limit a part of the program use ``using(gpupool.MemPool(limit=...))``.
- **Out of memory**: garbage is collected, CuPy's own pool is emptied, and the request is retried once; then CuPy
  raises ``cupy.cuda.memory.OutOfMemoryError``, whose ``__cause__`` is gpupool's error that says what holds the memory.
- **Graphs**: put ``with pool.capture(stream) as memory:`` around ``stream.begin_capture()`` and
  ``stream.end_capture()``: what is allocated there belongs to the graph until ``memory.reset()``.
- **Streams**: as with CuPy's own pool, an array that a second stream uses must not die before that stream is done with
  it. An array's memory keeps the ``cupy.cuda.Stream`` on which it was allocated alive.
- **Hooks**: CuPy's memory hooks belong to its own pool, and see nothing of gpupool.
- **Pinned memory**: ``enable(pinned=True)``, or ``using(pinned=True)`` for a thread: what ``cupyx.empty_pinned`` and
  the like return, and what CuPy uses to copy host arrays. As with CuPy's own pool, such an array must not die
  before copies with it are done, unless their stream was passed to :func:`record_stream`.
- **Handles**: ``enable(handles=True)``, or ``gpupool.cublas.handle(stream)`` with the functions of
  ``cupy_backends.cuda.libs``, which put CuPy's current stream into the handle at every call.

CuPy's side is described at https://docs.cupy.dev/en/stable/user_guide/memory.html
"""

import functools
import gc
import numbers
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import ModuleType
from typing import Any, NamedTuple

from gpupool._frameworks import cupy_handles as _cupy_handles
from gpupool._frameworks import cupy_pinned as _cupy_pinned
from gpupool._frameworks import plug as _plug
from gpupool._native import (
    Asleep,
    CupyAllocator,
    InvalidValue,
    MemPool,
    OutOfMemory,
    PoolToken,
    current_device,
    device_count,
    empty,
    empty_cache,
    empty_pinned_cache,
    get_per_process_memory_fraction,
    memory_snapshot,
    memory_stats,
    set_per_process_memory_fraction,
)

__all__ = [
    "MemoryPool",
    "PinnedMemoryPool",
    "disable",
    "enable",
    "get_default_memory_pool",
    "get_default_pinned_memory_pool",
    "is_enabled",
    "record_stream",
    "using",
]


class _Enabled(NamedTuple):
    """The state that `disable` restores."""

    allocator: Any
    # For each device that CUPY_GPU_MEMORY_LIMIT limited: the part of its memory that was allowed before, and since.
    limits: dict[int, tuple[float, float]]


_enabled: _Enabled | None = None
_lock = threading.Lock()


def _cupy() -> ModuleType:
    return _plug.require("cupy", (13,), "cupy-cuda13x")


@functools.cache
def _allocator() -> CupyAllocator:
    """Return the allocator for CuPy.

    Everything it uses is its own, so that it also works while the interpreter ends.
    """
    cupy = _cupy()
    return CupyAllocator(cupy.cuda, functools.partial(_failed, cupy))


@functools.cache
def _allocate() -> Callable[[int], Any]:
    """Return the function that CuPy allocates with."""
    return _allocator().malloc


def _failed(cupy: ModuleType, nbytes: int, error: Exception) -> Any:
    """Return what a request gets that failed at first, or raise what CuPy knows."""
    if isinstance(error, OutOfMemory):
        return _retry(cupy, nbytes)
    if isinstance(error, Asleep):
        raise _asleep(cupy, nbytes, error) from error
    raise error


@functools.cache
def _current_stream() -> Callable[[int], int]:
    """Return the function that names CuPy's current stream on a device, for calls of gpupool that name none."""
    return _allocator().current_stream


def _retry(cupy: ModuleType, nbytes: int) -> Any:
    """Allocate once more, after what CuPy's own pool does when it has run out of memory."""
    stream = cupy.cuda.get_current_stream()
    gc.collect()
    own = cupy.get_default_memory_pool()
    # Freeing it waits for the device, which a capture does not survive.
    if own.free_bytes() > 0 and not _cupy_pinned.is_capturing(stream):
        own.free_all_blocks()
    try:
        buffer = empty(nbytes, stream.ptr)
    except OutOfMemory as error:
        part = get_per_process_memory_fraction(error.device)
        limit = int(part * error.total_bytes) if part < 1 else 0
        reserved = memory_stats(error.device).reserved_bytes
        raise cupy.cuda.memory.OutOfMemoryError(nbytes, reserved, limit) from error
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(buffer.ptr, nbytes, buffer, buffer.device), 0)


def _asleep(cupy: ModuleType, nbytes: int, error: Asleep) -> MemoryError:
    """Return CuPy's error for a request to a pool that is asleep, with the text that says how to wake it."""
    lack: MemoryError = cupy.cuda.memory.OutOfMemoryError(nbytes, 0, 0)
    lack.args = (str(error),)
    return lack


def _total_bytes(device: int) -> int:
    """Return the device's memory in bytes. This needs no context there."""
    return int(_cupy().cuda.runtime.getDeviceProperties(device)["totalGlobalMem"])


def _part(device: int, size: float | None, fraction: float | None) -> float:
    """Return the part of a device's memory that a limit in CuPy's terms allows."""
    if size is not None and fraction is not None:
        raise InvalidValue("size and fraction cannot be specified at one time")
    if fraction is not None:
        if not isinstance(fraction, numbers.Real) or not 0 <= fraction <= 1:
            raise InvalidValue(f"memory limit fraction out of range: {fraction}")
        # For CuPy a limit of 0 is no limit.
        return fraction or 1.0
    if size is not None and (not isinstance(size, numbers.Real) or not size >= 0):
        raise InvalidValue(f"memory limit size out of range: {size}")
    return min(1.0, size / _total_bytes(device)) if size else 1.0


def _limits_of_environment() -> dict[int, float]:
    """Return what CUPY_GPU_MEMORY_LIMIT allows on each device: so many bytes, or per cent with a ``%``."""
    text = os.environ.get("CUPY_GPU_MEMORY_LIMIT")
    if not text:
        return {}
    try:
        fraction, size = (float(text[:-1]) / 100, None) if text.endswith("%") else (None, int(text))
        return {device: _part(device, size, fraction) for device in range(device_count())}
    except ValueError as error:
        raise InvalidValue(f"CUPY_GPU_MEMORY_LIMIT={text!r}, a number of bytes or per cent: {error}") from error


def _limit(parts: dict[int, float]) -> dict[int, tuple[float, float]]:
    """Set the limits of all devices or of none, and return of each the former one and the new one as it was rounded."""
    limits = {}
    with ExitStack() as undo:
        for device, part in parts.items():
            before = get_per_process_memory_fraction(device)
            set_per_process_memory_fraction(part, device)
            undo.callback(set_per_process_memory_fraction, before, device)
            limits[device] = before, get_per_process_memory_fraction(device)
        undo.pop_all()
    return limits


def enable(*, pinned: bool | None = None, handles: bool | None = None) -> None:
    """Let CuPy allocate from gpupool, in all threads; a second call changes nothing but what it names.

    Calls of gpupool without a stream use CuPy's current one. ``CUPY_GPU_MEMORY_LIMIT`` becomes the limit of what
    gpupool reserves on each device.

    With ``handles``, CuPy's handles of cuBLAS, cuSOLVER and cuSPARSE come from gpupool too. Each thread still gets one
    for each device, but when it ends they return to the pool; CuPy would destroy them, which waits for the device.
    CuPy has no official interface for this: ``create`` and ``destroy`` of ``cupy_backends.cuda.libs.cublas``,
    ``.cusolver`` and ``.cusparse`` are replaced, in the whole process, by functions that lease a handle and return it.
    Handles that threads already have remain CuPy's. The pools count, and limit, CuPy's handles as leases.

    With ``pinned``, CuPy's pinned memory comes from gpupool too, by ``cupy.cuda.set_pinned_memory_allocator``, on the
    NUMA node nearest to the thread's current device. When it runs out, garbage is collected, CuPy's own pool is
    emptied, and the request is retried once; then CuPy copies without pinned memory if it can, with a warning, and
    otherwise raises ``CUDARuntimeError`` (cudaErrorMemoryAllocation).

    Args:
        pinned: True to let CuPy's pinned memory come from gpupool too, from now on; False to end that; None leaves it
            as it is.
        handles: The same for CuPy's library handles.

    Raises:
        gpupool.LibraryNotFound: CuPy 13 or later is missing, or with ``handles`` a library, or CuPy uses another copy
            of it than gpupool.
        ValueError: The thread is in a block of :func:`using` or ``cupy.cuda.using_allocator``, where CuPy refuses to
            change the allocator of the process, or CUPY_GPU_MEMORY_LIMIT is invalid.

    See https://docs.cupy.dev/en/stable/reference/generated/cupy.cuda.set_allocator.html
    """
    global _enabled
    cupy, allocate = _cupy(), _allocate()
    with _lock:
        parts = _limits_of_environment() if _enabled is None else {}
        former = cupy.cuda.get_allocator()
        # Where CuPy refuses to change the allocator, this raises before anything else has changed.
        cupy.cuda.set_allocator(former)
        if handles:
            _cupy_handles.lend()
        if _enabled is None:
            _enabled = _Enabled(former, _limit(parts))
        elif former is not allocate:
            # Other code has set another allocator meanwhile.
            _enabled = _enabled._replace(allocator=former)
        cupy.cuda.set_allocator(allocate)
        _plug.follow(_current_stream())
        if handles is False:
            _cupy_handles.take_back()
        if pinned:
            _cupy_pinned.enable()
        elif pinned is False:
            _cupy_pinned.disable()


def disable() -> None:
    """Let CuPy allocate as it did before :func:`enable`, and create its handles itself; a second call does nothing.

    Existing arrays keep gpupool's memory until they die, and threads their handles until they end. An allocator that
    other code has set meanwhile stays. A limit of CUPY_GPU_MEMORY_LIMIT is removed unless it was changed since.
    Pinned memory comes from CuPy's default pool again, because CuPy does not report which allocator it had before.

    Raises:
        ValueError: The thread is in a block of :func:`using` or ``cupy.cuda.using_allocator``, as for :func:`enable`.
    """
    global _enabled
    with _lock:
        if _enabled is None:
            return
        cupy = _cupy()
        current = cupy.cuda.get_allocator()
        # Setting the present allocator again raises ValueError in such a block.
        cupy.cuda.set_allocator(_enabled.allocator if current is _allocate() else current)
        for device, (before, since) in _enabled.limits.items():
            if get_per_process_memory_fraction(device) == since:
                set_per_process_memory_fraction(before, device)
        _cupy_handles.take_back()
        _cupy_pinned.disable()
        _plug.unfollow(_current_stream())
        _enabled = None


def is_enabled() -> bool:
    """Return True after :func:`enable`, until :func:`disable`."""
    return _enabled is not None


@contextmanager
def using(pool: MemPool | PoolToken | None = None, *, pinned: bool = False) -> Iterator[Any]:
    """Let CuPy allocate from the pool in this thread, enabled or not, for a ``with`` block, which gets the pool.

    The pool belongs to one device: on other devices the default pool is used. Blocks nest, also with
    ``cupy.cuda.using_allocator``, and the innermost applies.

    Args:
        pool: A MemPool, or its ``token()`` in other threads than its own; None for gpupool's default memory, or for the
            pool whose scope the thread is in.
        pinned: Let this thread's pinned memory come from gpupool too, which belongs to no pool. As long as there is
            such a block, that of other threads comes from CuPy's default pool, unless :func:`enable` said otherwise.

    Raises:
        gpupool.LibraryNotFound: CuPy 13 or later is missing.
        gpupool.InvalidValue: The argument is not a pool.

    See https://docs.cupy.dev/en/stable/reference/generated/cupy.cuda.using_allocator.html
    """
    cupy = _cupy()
    pinning = _cupy_pinned.using() if pinned else nullcontext()
    with _plug.scope(pool), cupy.cuda.using_allocator(_allocate()), pinning:
        yield pool


def record_stream(array: Any, stream: Any = None) -> None:
    """Make sure that an array's pinned memory, once the array died, is not reused before this stream's work is done.

    Args:
        array: What ``cupyx.empty_pinned`` or the like has returned, or a view of it.
        stream: The stream of copies with it; CuPy's current one by default. It is kept alive as long as the array,
            unless it is given as an address.

    Raises:
        gpupool.InvalidValue: The array is not in gpupool's pinned memory.
    """
    _cupy_pinned.record_stream(array, _cupy().cuda.get_current_stream() if stream is None else stream)


class MemoryPool:
    """The methods of ``cupy.cuda.MemoryPool``, over all of gpupool's memory on the current device.

    See https://docs.cupy.dev/en/stable/reference/generated/cupy.cuda.MemoryPool.html
    """

    def malloc(self, size: int) -> Any:
        """Allocate ``size`` bytes on CuPy's current stream, and return a ``cupy.cuda.MemoryPointer``.

        Raises:
            cupy.cuda.memory.OutOfMemoryError: There is not enough memory.
        """
        return _allocate()(size)

    def free_all_blocks(self, stream: object = None) -> None:
        """Return free memory of all streams, pools and devices to the driver.

        ``stream`` has no effect; it exists because CuPy's method has it.
        """
        empty_cache()

    def n_free_blocks(self) -> int:
        """Return the number of free blocks."""
        device = current_device()
        segments = [segment for segment in memory_snapshot()["segments"] if segment["device"] == device]
        return sum(block["state"] == "inactive" for segment in segments for block in segment["blocks"])

    def used_bytes(self) -> int:
        """Return the bytes of live blocks after rounding."""
        return memory_stats().live_bytes

    def free_bytes(self) -> int:
        """Return the bytes that are reserved and not live."""
        stats = memory_stats()
        return stats.reserved_bytes - stats.live_bytes

    def total_bytes(self) -> int:
        """Return the bytes that are reserved."""
        return memory_stats().reserved_bytes

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Limit what gpupool reserves on the current device, to ``size`` bytes or to a fraction of its memory, 0 to 1.

        Without either, or with 0, there is no limit. Memory beyond a new limit is kept until it is freed and released.

        Raises:
            gpupool.InvalidValue: Both are given, or a value is invalid. The exception is a ValueError too.
        """
        device = current_device()
        set_per_process_memory_fraction(_part(device, size, fraction), device)

    def get_limit(self) -> int:
        """Return the limit on the current device in bytes; 0 for none."""
        device = current_device()
        part = get_per_process_memory_fraction(device)
        return round(part * _total_bytes(device)) if part < 1 else 0


_memory_pool = MemoryPool()


def get_default_memory_pool() -> MemoryPool:
    """Return the pool to use instead of ``cupy.get_default_memory_pool()``, which still returns CuPy's own pool."""
    return _memory_pool


class PinnedMemoryPool:
    """The methods of ``cupy.cuda.PinnedMemoryPool``, over all of gpupool's pinned memory.

    See https://docs.cupy.dev/en/stable/reference/generated/cupy.cuda.PinnedMemoryPool.html
    """

    def malloc(self, size: int) -> Any:
        """Allocate ``size`` bytes, and return a ``cupy.cuda.PinnedMemoryPointer``.

        Raises:
            cupy.cuda.runtime.CUDARuntimeError: There is not enough memory.
        """
        _cupy()
        return _cupy_pinned.allocator(True).malloc(size)

    def free_all_blocks(self) -> None:
        """Return free pinned memory to the system."""
        empty_pinned_cache()

    def n_free_blocks(self) -> int:
        """Return the number of free blocks."""
        segments = memory_snapshot()["pinned_segments"]
        return sum(block["state"] == "inactive" for segment in segments for block in segment["blocks"])


_pinned_memory_pool = PinnedMemoryPool()


def get_default_pinned_memory_pool() -> PinnedMemoryPool:
    """Return the pool to use instead of ``cupy.get_default_pinned_memory_pool()``, which still returns CuPy's own."""
    return _pinned_memory_pool


def __dir__() -> list[str]:
    return sorted(__all__)
