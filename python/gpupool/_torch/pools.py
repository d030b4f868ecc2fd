"""PyTorch's pools over gpupool's: those that PyTorch's allocator feeds from ours, and those that are ours."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gpupool import _native

# An RLock, since finalizers that the garbage collector runs meanwhile may enter it again.
_lock = threading.RLock()
# The device and the id of a gpupool pool; the id (0, 0) is that of the default memory of each device.
_Key = tuple[int, tuple[int, int]]
# PyTorch's pools that blocks made and no thread is in, by the gpupool pools that feed them.
_idle: dict[_Key, list[Any]] = {}
# The number of blocks that threads are in.
_inside = 0


def fed(torch: Any, pool: _native.MemPool | None, device: int | None, *, use_on_oom: bool, no_split: bool) -> Any:
    """Return a pool of PyTorch's own allocator, which takes its segments from ours.

    Raises:
        gpupool.InvalidValue: The pool cannot feed PyTorch, or 64 others do.
    """
    if pool is not None and isinstance(pool.allocator, tuple) and callable(pool.allocator[0]):
        raise _native.InvalidValue(
            "PyTorch calls a pool's allocator inside a lock, where Python functions could wait for each other for "
            "ever: give the MemPool the addresses of C functions"
        )
    malloc, free = _native.c_api.feed(pool)
    # PyTorch has no public name for an allocator whose functions are loaded already.
    allocator = torch._C._cuda_customAllocator(malloc, free)
    # A MemPool is of the device that is current.
    with torch.cuda.device(device):
        made = torch.cuda.MemPool(allocator, use_on_oom=use_on_oom, no_split=no_split)
    made.gpupool_pool = pool
    return made


def same(torch: Any, pool: _native.MemPool, adopt: Callable[[int, tuple[int, int], tuple[int, int]], None]) -> Any:
    """Return a pool of PyTorch's that is ours, where gpupool is PyTorch's allocator.

    Args:
        torch: PyTorch.
        pool: Ours.
        adopt: Makes the pool of a device and PyTorch's id the one of our id.

    Raises:
        gpupool.Error: The pool is gone.
    """
    with torch.cuda.device(pool.device):
        made = torch.cuda.MemPool()
    adopt(pool.device, made.id, pool.id)
    made.gpupool_pool = pool
    return made


@contextlib.contextmanager
def block(torch: Any, pool: _native.MemPool | None, *, all_threads: bool) -> Iterator[None]:
    """Route what this thread allocates through PyTorch's own allocator into the pool, or into the default memory."""
    device = torch.cuda.current_device() if pool is None else pool.device
    key = (device, (0, 0) if pool is None else pool.id)
    torch_pool = _enter(torch, pool, key)
    try:
        if all_threads:
            with _on_all_threads(torch, torch_pool, device):
                yield
        else:
            with torch.cuda.use_mem_pool(torch_pool, device=device):
                yield
    finally:
        _leave(key, torch_pool)


@contextlib.contextmanager
def _on_all_threads(torch: Any, torch_pool: Any, device: int) -> Iterator[None]:
    """Route what every thread allocates, as ``torch.cuda.use_mem_pool`` does for one."""
    functions = torch._C
    functions._cuda_beginAllocateToPool(device, torch_pool.id)
    try:
        yield
    finally:
        functions._cuda_endAllocateToPool(device, torch_pool.id)
        functions._cuda_releasePool(device, torch_pool.id)


def _enter(torch: Any, pool: _native.MemPool | None, key: _Key) -> Any:
    """Return a pool of PyTorch's for one block, since PyTorch lets one thread at a time into each."""
    global _inside
    with _lock:
        idle = _idle.get(key)
        torch_pool = idle.pop() if idle else None
    if torch_pool is None:
        torch_pool = fed(torch, pool, key[0], use_on_oom=False, no_split=False)
    # A block keeps the gpupool pool alive; a PyTorch pool that waits for the next block does not.
    torch_pool.gpupool_pool = None
    with _lock:
        _inside += 1
    return torch_pool


def _leave(key: _Key, torch_pool: Any) -> None:
    global _inside
    with _lock:
        _idle.setdefault(key, []).append(torch_pool)
        _inside -= 1


def blocks() -> int:
    """Return the number of blocks that threads are in."""
    return _inside


def drop_idle() -> None:
    """Drop PyTorch's pools that wait for the next block, unless a thread is in one."""
    with _lock:
        if _inside == 0:
            # Though PyTorch may call the driver: it ends the process if a thread enters a pool while another pool dies.
            _idle.clear()
