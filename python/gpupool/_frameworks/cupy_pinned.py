"""CuPy's pinned memory from gpupool. CuPy has one allocator of it for all threads, and does not tell which.

So whether it is gpupool's still is found out by asking for no bytes, and what comes after it is CuPy's default pool.
"""

import functools
import gc
import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpupool._native import CupyPinnedAllocator, CupyPinnedMemory, InvalidValue, OutOfMemory

# cudaErrorMemoryAllocation, which is hipErrorOutOfMemory too.
_OUT_OF_MEMORY = 2

_lock = threading.Lock()
# Whether all threads are served, and how many blocks there are that serve their thread alone.
_enabled = False
_blocks = 0


@functools.cache
def _cuda() -> Any:
    return importlib.import_module("cupy").cuda


def _own_pool() -> Any:
    return importlib.import_module("cupy").get_default_pinned_memory_pool()


def _retry(nbytes: int, error: OutOfMemory) -> Any:
    """Allocate once more, without garbage and what CuPy's own pool has cached; else raise what CuPy knows."""
    cuda = _cuda()
    gc.collect()
    own = _own_pool()
    # Freeing it waits for the device, which a capture does not survive.
    if own.n_free_blocks() > 0 and not is_capturing(cuda.get_current_stream()):
        own.free_all_blocks()
    try:
        return cuda.PinnedMemoryPointer(CupyPinnedMemory(nbytes), 0)
    except OutOfMemory as again:
        # By this error CuPy falls back on a copy that waits, where it has a choice.
        raise cuda.runtime.CUDARuntimeError(_OUT_OF_MEMORY) from again


def is_capturing(stream: Any) -> bool:
    """Return whether a stream is captured, or may be."""
    try:
        return bool(stream.is_capturing())
    except RuntimeError:
        # The driver refuses to tell of the default stream while one that waits for it is captured.
        return True


@functools.cache
def allocator(for_all: bool) -> CupyPinnedAllocator:
    """Return the allocator of all threads, or of those that are in a block."""
    otherwise = None if for_all else _own_pool().malloc
    return CupyPinnedAllocator(_cuda().PinnedMemoryPointer, _retry, otherwise)


def _install(takes_over: bool) -> None:
    """Let CuPy have the allocator that fits, in place of gpupool's, or also of one that other code has set."""
    cuda = _cuda()
    if takes_over or isinstance(cuda.alloc_pinned_memory(0).mem, CupyPinnedMemory):
        source = allocator(_enabled) if _enabled or _blocks > 0 else _own_pool()
        cuda.set_pinned_memory_allocator(source.malloc)


def enable() -> None:
    """Serve all threads."""
    global _enabled
    with _lock:
        _enabled = True
        _install(takes_over=True)


def disable() -> None:
    """Serve blocks alone, if there are any."""
    global _enabled
    with _lock:
        if _enabled:
            _enabled = False
            _install(takes_over=False)


@contextmanager
def using() -> Iterator[None]:
    """Serve this thread for a ``with`` block."""
    global _blocks
    with _lock:
        _blocks += 1
        _install(takes_over=True)
    CupyPinnedAllocator.enter()
    try:
        yield
    finally:
        CupyPinnedAllocator.leave()
        with _lock:
            _blocks -= 1
            _install(takes_over=False)


def record_stream(array: Any, stream: Any) -> None:
    """Keep an array's memory, once freed, from use before the stream is done with it."""
    base = array
    while base is not None:
        memory = getattr(base, "mem", None)
        if isinstance(memory, CupyPinnedMemory):
            memory.record_stream(stream)
            return
        base = getattr(base, "obj", None) if isinstance(base, memoryview) else getattr(base, "base", None)
    raise InvalidValue(
        "the array has no pinned memory of gpupool's; make it with cupyx.empty_pinned after gpupool.cupy.enable("
        "pinned=True)"
    )
