"""PyTorch on gpupool's memory, and gpupool on PyTorch's streams.

There are three ways, each of one line:

- ``gpupool.torch.enable()``: every tensor of the process from here on comes from gpupool. PyTorch's statistics,
  snapshots, pools and graphs work as they did.
- ``with gpupool.torch.using(pool):`` routes what this thread allocates in PyTorch into the pool.
- ``torch_pool = gpupool.torch.mem_pool(pool)``: a :class:`torch.cuda.MemPool` whose memory comes from a gpupool pool.

The last two work with the first and without it.

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
from gpupool._torch import place as _place
from gpupool._torch import pools as _pools

__all__ = ["disable", "empty_cache", "enable", "mem_pool", "using"]

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
    """Return a :class:`torch.cuda.MemPool` whose memory comes from gpupool.

    It is for ``torch.cuda.use_mem_pool`` and, by its ``id``, for ``torch.cuda.graph``.

    After :func:`enable` it is the gpupool pool itself. Without that PyTorch asks for whole segments, of 2 MiB at least,
    and keeps them as its own cache; they are live bytes of the gpupool pool. Where the pool is at its limit, or the
    device has no more, PyTorch frees what it can of its own and then raises ``torch.OutOfMemoryError``. Keep the
    MemPool as long as any thread is in a pool of PyTorch's or captures a graph: PyTorch 2.11 ends the process if one
    dies meanwhile.

    Args:
        pool: The pool that feeds it, which lives at least as long; the device's default pool if None. Its own
            allocator, if it has one, must be C functions unless gpupool is PyTorch's allocator, for PyTorch's own calls
            them inside a lock.
        device: Without a pool, the ordinal of the device; by default PyTorch's current one.
        use_on_oom: As for ``torch.cuda.MemPool``. After :func:`enable` that of the gpupool pool counts.
        no_split: As for ``torch.cuda.MemPool``. After :func:`enable` that of the gpupool pool counts.

    Raises:
        gpupool.LibraryNotFound: PyTorch is missing or older than 2.11.
        gpupool.InvalidValue: The pool cannot feed PyTorch, or 64 others do.
        gpupool.Error: PyTorch has no pools, since gpupool is its pluggable allocator.

    https://docs.pytorch.org/docs/stable/generated/torch.cuda.MemPool.html
    """
    torch = _torch()
    if _place.way() == "pluggable":
        raise gpupool.Error(
            "PyTorch has no pools of its own, since gpupool is its pluggable allocator: enter "
            "gpupool.torch.using(pool) instead"
        )
    if pool is not None:
        if device not in (None, pool.device):
            raise gpupool.InvalidValue(f"the pool is of device {pool.device}, not of device {device}")
        device = pool.device
    if _place.way() == "full":
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
def using(pool: gpupool.MemPool, *, all_threads: bool = False) -> Iterator[gpupool.MemPool]:
    """Route what this thread allocates in PyTorch into the pool, for a ``with`` block.

    That holds on the pool's device; what the thread allocates on others goes where it went. Any number of threads may
    be in one pool. Threads that start meanwhile are not in it, nor are those of backward passes, but with
    ``all_threads``. After :func:`enable` it is :func:`gpupool.use_mem_pool`. Without that, what PyTorch keeps of the
    memory after the block serves the next block with the same pool; :func:`empty_cache` gives it back.

    PyTorch's own blocks are a thread's also in an asyncio task; after :func:`enable` the block is the task's.

    Args:
        pool: The pool.
        all_threads: Also route what every other thread allocates in PyTorch on that device. A block that a thread
            enters later than this one counts for that thread; after :func:`enable` also one it entered before.

    Raises:
        gpupool.Error: As for :func:`mem_pool`.

    https://docs.pytorch.org/docs/stable/generated/torch.cuda.use_mem_pool.html
    """
    if _place.way() is None:
        with _pools.block(_torch(), pool, all_threads=all_threads):
            yield pool
    else:
        with gpupool.use_mem_pool(pool, all_threads=all_threads):
            yield pool


def empty_cache() -> None:
    """Give back to the driver what PyTorch's pools of :func:`using`, PyTorch's cache and gpupool's cache keep.

    While a thread is in a block of :func:`using`, the first of these stays. Without :func:`enable`, don't call it while
    a thread is in another pool of PyTorch's or captures a graph: PyTorch 2.11 ends the process if a pool of its own
    dies meanwhile.
    """
    _pools.drop_idle()
    _torch().cuda.empty_cache()
    gpupool.empty_cache()


def enable(*, allocator: bool = True, pinned: bool = False) -> None:
    """Make gpupool the allocator of every CUDA tensor of the process, and follow PyTorch's current stream.

    Call it at any time: tensors that exist keep their memory, which goes back where it came from. ``handle()`` and
    ``empty()`` without a stream then take the calling thread's ``torch.cuda.current_stream()``. A second call does
    nothing, and :func:`disable` undoes it. Other threads may allocate meanwhile.

    Everything that PyTorch has for its memory works and tells of gpupool's: ``torch.cuda.memory_stats`` and all that
    reads it, ``torch.cuda.memory_snapshot`` and ``torch.cuda.memory._record_memory_history``, ``torch.cuda.MemPool``,
    ``torch.cuda.graph``, the graph trees of ``torch.compile``, and ``torch.OutOfMemoryError``, whose text says who
    holds the memory. ``torch.multiprocessing`` shares tensors as it did, with processes that have called this too. Of
    ``PYTORCH_CUDA_ALLOC_CONF`` nothing is read.

    That takes a small library made for the version of PyTorch: it comes with gpupool for the versions that were there,
    and is compiled for others when it is first needed, which takes a C++ compiler and CUDA's headers, and then is kept
    in ``~/.cache/gpupool`` (or below ``XDG_CACHE_HOME``). Where that fails a warning says why, and gpupool becomes
    PyTorch's pluggable allocator: before the first tensor on a GPU alone, for good, and without PyTorch's statistics,
    snapshots, pools and graph trees.

    With ``pinned``, PyTorch's pinned memory comes from gpupool too: ``tensor.pin_memory()``,
    ``torch.empty(..., pin_memory=True)``, ``DataLoader(pin_memory=True)``,
    ``torch.autograd.graph.save_on_cpu(pin_memory=True)``. ``torch.cuda.host_memory_stats`` and what resets it tell of
    it. A block is used again once the copies with ``non_blocking=True`` are done that were begun by then. A later call
    may add it.

    Args:
        allocator: False to leave out the memory of tensors on GPUs.
        pinned: Let PyTorch's pinned memory come from gpupool too.

    Raises:
        gpupool.Error: Another allocator was chosen, by ``PYTORCH_CUDA_ALLOC_CONF`` or
            ``torch.cuda.memory.change_current_allocator``; or there is no library and PyTorch has used CUDA already.
        gpupool.LibraryNotFound: PyTorch is missing, older than 2.11, or built without CUDA; or, with ``pinned``, there
            is no library.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
    """
    global _source
    torch = _torch()
    with _lock:
        is_new = pinned and _place.take_pinned(torch)
        try:
            if allocator:
                _place.take(torch)
                if _place.way() == "full":
                    _sent_tensors.watch(torch)
        except Exception:
            if is_new:
                _place.give_back_pinned()
            raise
        if _source is None:
            source = torch._C._cuda_getCurrentRawStream
            _plug.follow(source)
            _source = source


def disable() -> None:
    """Give PyTorch its own allocators back, and follow its streams no longer. A second call does nothing.

    Tensors made meanwhile keep their memory, which goes back to gpupool when they die; graphs and pools live on too.
    Only a pluggable allocator stays, since PyTorch has no way back from it.

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


def __dir__() -> list[str]:
    return sorted(__all__)
