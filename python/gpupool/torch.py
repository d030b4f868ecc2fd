"""PyTorch on gpupool's memory, and gpupool on PyTorch's streams.

There are three ways, each of one line:

- ``torch_pool = gpupool.torch.mem_pool(pool)``: a :class:`torch.cuda.MemPool` whose memory comes from a gpupool pool.
  All of PyTorch's allocator works on top of it: statistics, snapshots, graphs, ``torch.OutOfMemoryError``.
- ``with gpupool.torch.using(pool):`` routes what this thread allocates in PyTorch into the pool.
- ``gpupool.torch.enable()``: every tensor of the process comes from gpupool; see there for what that costs.

https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gpupool
from gpupool import _native
from gpupool._frameworks import plug as _plug

# The oldest PyTorch that gpupool was tried with.
_MINIMUM = (2, 11)

# An RLock, since finalizers that the garbage collector runs meanwhile may enter it again.
_lock = threading.RLock()
_has_allocator = False
# The function that names PyTorch's current stream, while it is followed.
_source: Callable[[int], int] | None = None
# PyTorch's pools that `using` made and no thread is in, by the ids of the gpupool pools that feed them.
_idle: dict[tuple[int, int], list[Any]] = {}
# The number of blocks of `using` that threads are in.
_inside = 0


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

    PyTorch asks for whole segments, of 2 MiB at least, and keeps them as its own cache; they are live bytes of the
    gpupool pool. Where the pool is at its limit, or the device has no more, PyTorch frees what it can of its own and
    then raises ``torch.OutOfMemoryError``. Keep the MemPool as long as any thread is in a pool of PyTorch's or captures
    a graph: PyTorch 2.11 ends the process if one dies meanwhile.

    Args:
        pool: The pool that feeds it, which lives at least as long; the device's default pool if None. Its own
            allocator, if it has one, must be C functions, for PyTorch calls them inside a lock.
        device: Without a pool, the ordinal of the device; by default PyTorch's current one.
        use_on_oom: As for ``torch.cuda.MemPool``.
        no_split: As for ``torch.cuda.MemPool``.

    Raises:
        gpupool.LibraryNotFound: PyTorch is missing or older than 2.11.
        gpupool.InvalidValue: The pool cannot feed PyTorch, or 64 others do.
        gpupool.Error: PyTorch has no pools after :func:`enable`.

    https://docs.pytorch.org/docs/stable/generated/torch.cuda.MemPool.html
    """
    torch = _torch()
    if _has_allocator:
        raise gpupool.Error(
            "PyTorch has no pools of its own after gpupool.torch.enable(): enter gpupool.torch.using(pool) instead"
        )
    if pool is not None:
        if device not in (None, pool.device):
            raise gpupool.InvalidValue(f"the pool is of device {pool.device}, not of device {device}")
        device = pool.device
        if isinstance(pool.allocator, tuple) and callable(pool.allocator[0]):
            raise gpupool.InvalidValue(
                "PyTorch calls a pool's allocator inside a lock, where Python functions could wait for each other for "
                "ever: give the MemPool the addresses of C functions"
            )
    malloc, free = gpupool.c_api.feed(pool)
    # PyTorch has no public name for an allocator whose functions are loaded already.
    allocator = torch._C._cuda_customAllocator(malloc, free)
    # A MemPool is of the device that is current.
    with torch.cuda.device(device):
        made = torch.cuda.MemPool(allocator, use_on_oom=use_on_oom, no_split=no_split)
    made.gpupool_pool = pool
    return made


@contextlib.contextmanager
def using(pool: gpupool.MemPool, *, all_threads: bool = False) -> Iterator[gpupool.MemPool]:
    """Route what this thread allocates in PyTorch into the pool, for a ``with`` block.

    That holds on the pool's device; what the thread allocates on others goes where it went. Any number of threads may
    be in one pool. Threads that start meanwhile are not in it, nor are those of backward passes, but with
    ``all_threads``. What PyTorch keeps of the memory after the block serves the next block with the same pool;
    :func:`empty_cache` gives it back.

    PyTorch's own blocks are a thread's also in an asyncio task; after :func:`enable` the block is the task's.

    Args:
        pool: The pool.
        all_threads: Also route what every other thread allocates in PyTorch on that device. A block that a thread
            enters later than this one counts for that thread; after :func:`enable` also one it entered before.

    Raises:
        gpupool.Error: As for :func:`mem_pool`.

    https://docs.pytorch.org/docs/stable/generated/torch.cuda.use_mem_pool.html
    """
    if _has_allocator:
        with gpupool.use_mem_pool(pool, all_threads=all_threads):
            yield pool
        return
    torch = _torch()
    torch_pool = _enter(pool)
    enter = _use_on_all_threads if all_threads else torch.cuda.use_mem_pool
    try:
        with enter(torch_pool, device=pool.device):
            yield pool
    finally:
        _leave(pool, torch_pool)


@contextlib.contextmanager
def _use_on_all_threads(torch_pool: Any, device: int) -> Iterator[None]:
    """Route what every thread allocates, as ``torch.cuda.use_mem_pool`` does for one."""
    functions = _torch()._C
    functions._cuda_beginAllocateToPool(device, torch_pool.id)
    try:
        yield
    finally:
        functions._cuda_endAllocateToPool(device, torch_pool.id)
        functions._cuda_releasePool(device, torch_pool.id)


def _enter(pool: gpupool.MemPool) -> Any:
    """Return a pool of PyTorch's for one block, since PyTorch lets one thread at a time into each."""
    global _inside
    with _lock:
        idle = _idle.get(pool.id)
        torch_pool = idle.pop() if idle else mem_pool(pool)
        # A block keeps the gpupool pool alive; a PyTorch pool that waits for the next block does not.
        torch_pool.gpupool_pool = None
        _inside += 1
    return torch_pool


def _leave(pool: gpupool.MemPool, torch_pool: Any) -> None:
    global _inside
    with _lock:
        _idle.setdefault(pool.id, []).append(torch_pool)
        _inside -= 1


def empty_cache() -> None:
    """Give back to the driver what PyTorch's pools of :func:`using`, PyTorch's cache and gpupool's cache keep.

    While a thread is in a block of :func:`using`, the first of these stays. Don't call it while a thread is in another
    pool of PyTorch's or captures a graph: PyTorch 2.11 ends the process if a pool of its own dies meanwhile.
    """
    with _lock:
        if _inside == 0:
            _idle.clear()
    _torch().cuda.empty_cache()
    gpupool.empty_cache()


def _symbols(torch: Any) -> ctypes.CDLL:
    """Return PyTorch's library for CUDA, which leads to all that it was linked with."""
    try:
        return ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10_cuda.so"))
    except OSError as error:
        raise gpupool.LibraryNotFound(f"PyTorch {torch.__version__} was built without CUDA: {error}") from error


def _swap_allocator(torch: Any) -> None:
    """Make gpupool PyTorch's allocator."""
    library = _symbols(torch)

    def address_of(symbol: str) -> int:
        try:
            return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
        except AttributeError as error:
            raise gpupool.LibraryNotFound(
                f"PyTorch {torch.__version__} has no {symbol}, without which it could not raise OutOfMemoryError: use "
                "gpupool.torch.mem_pool or gpupool.torch.using instead"
            ) from error

    functions = _native.torch_functions(address_of)
    allocator = torch._C._cuda_customAllocator(functions.pop("malloc"), functions.pop("free"))
    for setter, address in functions.items():
        getattr(allocator, setter)(address)
    try:
        torch._C._cuda_changeCurrentAllocator(allocator)
    except RuntimeError as error:
        raise gpupool.Error(
            "PyTorch has used CUDA already, and its allocator cannot be changed any more: call gpupool.torch.enable() "
            "before the first tensor on a GPU, or use gpupool.torch.using(pool)"
        ) from error


def enable(*, allocator: bool = True) -> None:
    """Make gpupool the allocator of every CUDA tensor of the process, and follow PyTorch's current stream.

    Call it before the first tensor on a GPU. ``handle()`` and ``empty()`` without a stream then take the calling
    thread's ``torch.cuda.current_stream()``. A second call does nothing.

    What works: ``record_stream``, ``torch.cuda.empty_cache``, ``torch.cuda.set_per_process_memory_fraction``,
    ``torch.cuda.graph`` with and without ``graph_pool_handle()``, ``gpupool.use_mem_pool``, and
    ``torch.OutOfMemoryError``, whose text says who holds the memory.

    What PyTorch then no longer has, for it asks its own allocator for them: ``torch.cuda.memory_stats`` and all that
    reads it (``memory_allocated``, ``max_memory_allocated``, ``memory_summary``), ``torch.cuda.memory_snapshot`` and
    ``torch.cuda.memory._record_memory_history``, for which there are ``gpupool.memory_stats``,
    ``gpupool.memory_snapshot`` and ``gpupool.record_memory_history``; ``torch.cuda.MemPool``; tensors shared with other
    processes; the graph trees of ``torch.compile`` (``mode="reduce-overhead"``). ``PYTORCH_CUDA_ALLOC_CONF`` means
    nothing. Code that asks how large a workspace may be, as ``torch.backends.cudnn.benchmark`` can, may be refused.
    Where GPUs copy to each other directly, let each reach the other's memory by ``gpupool.enable_peer_access``. Two
    captures at once on one device hold each other's memory until both graphs are reset. Where any of that is needed,
    take :func:`using` or :func:`mem_pool`.

    Args:
        allocator: False to follow the streams alone, at any time.

    Raises:
        gpupool.Error: PyTorch's allocator has been used.
        gpupool.LibraryNotFound: PyTorch is missing, older than 2.11, or built without CUDA.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#using-custom-memory-allocators-for-cuda
    """
    global _has_allocator, _source
    torch = _torch()
    with _lock:
        if allocator and not _has_allocator:
            _swap_allocator(torch)
            _has_allocator = True
        if _source is None:
            source = torch._C._cuda_getCurrentRawStream
            _plug.follow(source)
            _source = source


def disable() -> None:
    """Follow PyTorch's streams no longer. The allocator stays: PyTorch has no way back. A second call does nothing."""
    global _source
    with _lock:
        if _source is not None:
            _plug.unfollow(_source)
            _source = None
