"""PyTorch on gpupool's memory, and gpupool on PyTorch's streams.

There are three ways, each of one line:

- ``gpupool.torch.enable()``: every tensor of the process from here on comes from gpupool. PyTorch's statistics,
  snapshots, pools and graphs work as they did.
- ``with gpupool.torch.using(pool):``: what this thread allocates in PyTorch comes from the pool.
- ``torch_pool = gpupool.torch.mem_pool(pool)``: a ``torch.cuda.MemPool`` whose memory comes from a gpupool pool.

The last two work with and without the first.

https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gpupool
from gpupool._frameworks import plug as _plug
from gpupool._frameworks import sent_tensors as _sent_tensors
from gpupool._native import begin_allocate_to_pool, end_allocate_to_pool, pool_use_count, release_pool
from gpupool._torch import place as _place
from gpupool._torch import pools as _pools

__all__ = [
    "begin_allocate_to_pool",
    "disable",
    "empty_cache",
    "enable",
    "end_allocate_to_pool",
    "is_enabled",
    "mem_pool",
    "pool_use_count",
    "release_pool",
    "using",
]

# The oldest PyTorch that gpupool was tried with.
_MINIMUM = (2, 11)

# An RLock, since finalizers that the garbage collector runs meanwhile may enter it again.
_lock = threading.RLock()
# The function that names PyTorch's current stream, while it is followed.
_source: Callable[[int], int] | None = None


def _torch() -> Any:
    torch = _plug.require("torch", _MINIMUM, "torch")
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise gpupool.LibraryNotFound(f"PyTorch {torch.__version__} was built without CUDA")
    return torch


def mem_pool(
    pool: gpupool.MemPool | None = None,
    *,
    device: int | None = None,
    use_on_oom: bool = False,
    no_split: bool = False,
) -> Any:
    """Return a ``torch.cuda.MemPool`` whose memory comes from gpupool.

    It is for ``torch.cuda.use_mem_pool`` and, by its ``id``, for ``torch.cuda.graph``.

    After :func:`enable` it is the gpupool pool itself. Without that PyTorch requests whole segments, of at least 2 MiB,
    and caches them; they are live bytes of the gpupool pool. If the pool is at its limit, or the
    device has no more memory, PyTorch releases what it can and then raises ``torch.OutOfMemoryError``. Keep the
    MemPool as long as any thread uses a PyTorch pool or captures a graph: PyTorch 2.11 ends the process if one
    dies meanwhile.

    Args:
        pool: The pool that it allocates from, which lives at least as long; the device's default pool if None. If the
            pool has a custom allocator, that must be C functions unless gpupool is PyTorch's allocator, because
            PyTorch's own allocator calls them inside a lock.
        device: Without a pool, the ordinal of the device; by default PyTorch's current one.
        use_on_oom: As for ``torch.cuda.MemPool``. After :func:`enable` that of the gpupool pool applies.
        no_split: As for ``torch.cuda.MemPool``. After :func:`enable` that of the gpupool pool applies.

    Raises:
        gpupool.LibraryNotFound: PyTorch is missing or older than 2.11.
        gpupool.InvalidValue: The pool cannot supply PyTorch, or 64 others do.

    https://docs.pytorch.org/docs/stable/generated/torch.cuda.MemPool.html
    """
    torch = _torch()
    if pool is not None:
        if device not in (None, pool.device):
            raise gpupool.InvalidValue(f"the pool is of device {pool.device}, not of device {device}")
        device = pool.device
    if _place.is_taken():
        if pool is None:
            with torch.cuda.device(device):
                return torch.cuda.MemPool(use_on_oom=use_on_oom, no_split=no_split)
        if use_on_oom or no_split:
            raise gpupool.InvalidValue(
                "after gpupool.torch.enable() a pool is used as it is: give use_on_oom and no_split to gpupool.MemPool"
            )
        return _pools.same(torch, pool, _place.adopt)
    return _pools.fed(torch, pool, device, use_on_oom=use_on_oom, no_split=no_split)


@contextlib.contextmanager
def using(
    pool: gpupool.MemPool | gpupool.typing.PoolToken | None = None, *, all_threads: bool = False
) -> Iterator[Any]:
    """Let what this thread allocates in PyTorch come from the pool, for a ``with`` block, which gets the pool.

    This applies to the pool's device; allocations on other devices do not change. Any number of threads may use one
    pool. Threads that are started in the block are not in it, nor are those of backward passes, unless ``all_threads``
    is True. After :func:`enable` this is :func:`gpupool.use_mem_pool`. Without that, memory that PyTorch still caches
    after the block serves the next block with the same pool; :func:`empty_cache` releases it.

    Without :func:`enable` a block in an asyncio task applies to the whole thread; after it only to the task.

    Args:
        pool: A MemPool, or, after :func:`enable`, its ``token()``; None for gpupool's default memory, or, after
            :func:`enable`, for the pool whose scope the thread is in.
        all_threads: Also apply to what every other thread allocates in PyTorch on that device. For a thread that enters
            another block later, that block applies; after :func:`enable` also one that it entered before.

    Raises:
        gpupool.Error: As for :func:`mem_pool`.
        gpupool.InvalidValue: A token without :func:`enable`, or ``all_threads`` without a pool.

    https://docs.pytorch.org/docs/stable/generated/torch.cuda.use_mem_pool.html
    """
    if pool is None and all_threads:
        raise gpupool.InvalidValue("all_threads=True needs a pool: give a MemPool, or leave all_threads out")
    if pool is not None:
        _plug.device_of(pool)
    if not _place.is_taken():
        if isinstance(pool, gpupool.typing.PoolToken):
            raise gpupool.InvalidValue(
                "pool is a token, which needs gpupool.torch.enable(): PyTorch's own allocator takes a MemPool alone"
            )
        with _pools.block(_torch(), pool, all_threads=all_threads):
            yield pool
    elif pool is None:
        yield None
    else:
        with gpupool.use_mem_pool(pool, all_threads=all_threads):
            yield pool


def empty_cache() -> None:
    """Release the memory cached by PyTorch's pools of :func:`using`, by PyTorch and by gpupool to the driver.

    While a thread is in a block of :func:`using`, the first of these is kept. Without :func:`enable`, don't call it
    while a thread uses another PyTorch pool or captures a graph: PyTorch 2.11 ends the process if one of its pools
    dies meanwhile.
    """
    _pools.drop_idle()
    _torch().cuda.empty_cache()
    gpupool.empty_cache()


def enable(*, pinned: bool | None = None, allocator: bool = True) -> None:
    """Make gpupool the allocator of every CUDA tensor of the process, and use PyTorch's current stream.

    Call it at any time: existing tensors keep their memory, which returns to where it came from. ``handle()`` and
    ``empty()`` without a stream then use the calling thread's ``torch.cuda.current_stream()``. A second call does
    nothing, and :func:`disable` undoes it. Other threads may allocate meanwhile.

    All memory functions of PyTorch work and report gpupool's memory: ``torch.cuda.memory_stats`` and everything that
    reads it, ``torch.cuda.memory_snapshot`` and ``torch.cuda.memory._record_memory_history``, ``torch.cuda.MemPool``,
    ``torch.cuda.graph``, the graph trees of ``torch.compile``, and ``torch.OutOfMemoryError``, whose text says what
    holds the memory. ``torch.multiprocessing`` shares tensors as before, also with processes that do not call this, or
    know of gpupool at all, if it is installed there. ``PYTORCH_CUDA_ALLOC_CONF`` is not read.

    This needs a small library built for the version of PyTorch: the wheel contains libraries for the versions that
    existed when it was built. For others it is compiled when it is first needed, which needs a C++ compiler and CUDA's
    headers, and kept in ``~/.cache/gpupool`` (or below ``XDG_CACHE_HOME``). If that fails, the error says what is
    missing, and PyTorch's allocator stays as it is.

    With ``pinned``, PyTorch's pinned memory comes from gpupool too: ``tensor.pin_memory()``,
    ``torch.empty(..., pin_memory=True)``, ``DataLoader(pin_memory=True)``,
    ``torch.autograd.graph.save_on_cpu(pin_memory=True)``. ``torch.cuda.host_memory_stats`` and the functions that reset
    it work. A freed block is reused once the copies with ``non_blocking=True`` are done that had begun by then.

    Args:
        pinned: True to let PyTorch's pinned memory come from gpupool too, from now on; False to end that; None leaves
            it as it is.
        allocator: False to leave the allocator of GPU tensors unchanged.

    Raises:
        gpupool.Error: Another allocator was chosen, by ``PYTORCH_CUDA_ALLOC_CONF`` or
            ``torch.cuda.memory.change_current_allocator``.
        gpupool.LibraryNotFound: PyTorch is missing, older than 2.11, or built without CUDA; or there is no library for
            it, and none could be made.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
    """
    global _source
    torch = _torch()
    with _lock:
        is_new = bool(pinned) and _place.take_pinned(torch)
        try:
            if allocator:
                _place.take(torch)
                _sent_tensors.watch(torch)
        except Exception:
            if is_new:
                _place.give_back_pinned()
            raise
        if pinned is False:
            _place.give_back_pinned()
        if _source is None:
            source = torch._C._cuda_getCurrentRawStream
            _plug.follow(source)
            _source = source


def disable() -> None:
    """Restore PyTorch's own allocators, and stop using its current stream. A second call does nothing.

    Tensors created meanwhile keep their memory, which returns to gpupool when they die; graphs and pools also stay
    valid. Call it while no graph is captured: captures that have not ended by then are taken for failed ones, whose
    end PyTorch does not report.

    Raises:
        gpupool.Error: Other code has changed PyTorch's allocator meanwhile.
    """
    global _source
    with _lock:
        _place.give_back()
        _place.give_back_pinned()
        if _source is not None:
            _plug.unfollow(_source)
            _source = None


def is_enabled() -> bool:
    """Return True if PyTorch's tensors come from gpupool: after :func:`enable`, until :func:`disable`."""
    return _place.is_taken()


def __dir__() -> list[str]:
    return sorted(__all__)
