"""Who is PyTorch's allocator, of devices' memory and of pinned memory: gpupool takes a place, and gives it back."""

import os
import threading
import warnings
from typing import Any

from gpupool import _native
from gpupool._torch import library

# With this variable set, NCCL observes the allocator's segments from when the first process group is made.
_NCCL_HOOK = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"

# An RLock, since finalizers that the garbage collector runs meanwhile may enter it again.
_lock = threading.RLock()
# The library of this folder's C++, once it was loaded; it is loaded once, for it stays in the process.
_library: library.Library | None = None
# Whether gpupool is PyTorch's allocator.
_is_taken = False
# Whether it ever was.
_was_taken = False
# Whether PyTorch's pinned memory comes from gpupool.
_has_pinned = False


def is_taken() -> bool:
    """Return True if gpupool is PyTorch's allocator."""
    return _is_taken


def was_taken() -> bool:
    """Return True if gpupool is PyTorch's allocator, or was: its library stays, for what was made meanwhile."""
    return _was_taken


def take(torch: Any) -> None:
    """Make gpupool PyTorch's allocator; a second call does nothing.

    Raises:
        gpupool.Error: Another allocator has the place.
        gpupool.LibraryNotFound: There is no library for this PyTorch, and none could be made.
    """
    global _is_taken, _was_taken
    with _lock:
        if _is_taken:
            return
        _refuse_others(torch)
        loaded = _load(torch, "memory", "use gpupool.torch.using(pool), which needs no library")
        loaded.call("install", library.table())
        _is_taken = _was_taken = True
        _warn_of_hooks(torch)


def take_pinned(torch: Any) -> bool:
    """Make gpupool PyTorch's allocator of pinned memory; return False if it was already.

    Raises:
        gpupool.Error: Another allocator has the place.
        gpupool.LibraryNotFound: There is no library for this PyTorch, or PyTorch lacks what is needed.
    """
    global _has_pinned
    with _lock:
        if _has_pinned:
            return False
        loaded = _load(torch, "pinned memory", "leave out pinned=True")
        loaded.call("install_pinned", library.table(), *library.functions_of_torch_cpu())
        _has_pinned = True
        return True


def give_back() -> None:
    """Give the place back to the allocator that was there.

    Raises:
        gpupool.Error: The library refuses.
    """
    global _is_taken
    with _lock:
        if _is_taken and _library is not None:
            _library.call("uninstall")
            _is_taken = False


def give_back_pinned() -> None:
    """Let PyTorch's own allocator of pinned memory serve what is new.

    Raises:
        gpupool.Error: The library refuses.
    """
    global _has_pinned
    with _lock:
        if _has_pinned and _library is not None:
            _library.call("uninstall_pinned")
            _has_pinned = False


def adopt(device: int, torch_id: tuple[int, int], own_id: tuple[int, int]) -> None:
    """Make a pool that PyTorch has just made one of gpupool's, which is its allocator.

    Raises:
        gpupool.Error: One of them is gone.
    """
    if _library is not None:
        _library.call("adopt", device, *torch_id, library.PoolId(*own_id))


def _load(torch: Any, what: str, instead: str) -> library.Library:
    """Return the library, loaded at the first call.

    Raises:
        gpupool.LibraryNotFound: There is none.
    """
    global _library
    if _library is None:
        try:
            _library = library.load(torch)
        except library.NoLibrary as reason:
            raise _native.LibraryNotFound(
                f"PyTorch's {what} cannot come from gpupool: gpupool has no library for PyTorch {torch.__version__} "
                f"and could not make one: {reason}. Mend that, or {instead}"
            ) from reason
    return _library


def _warn_of_hooks(torch: Any) -> None:
    """Warn of what observes PyTorch's own allocator since before, and so sees none of gpupool's segments.

    PyTorch has no function that lists its observers. NCCL's hook is there if its variable is set and a group was made.
    """
    distributed = getattr(torch, "distributed", None)
    is_grouped = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if is_grouped and os.environ.get(_NCCL_HOOK, "").lower() in ("1", "y", "yes", "t", "true"):
        warnings.warn(
            f"NCCL's hook for segments ({_NCCL_HOOK}) was attached before gpupool.torch.enable(), and sees only "
            "PyTorch's own allocator: call enable() before torch.distributed.init_process_group()",
            RuntimeWarning,
            stacklevel=4,
        )


def _refuse_others(torch: Any) -> None:
    """Refuse to take the place of an allocator that was chosen."""
    ask = getattr(torch._C, "_cuda_getAllocatorBackend", None)
    backend = "native" if ask is None else str(ask())
    if backend == "cudaMallocAsync":
        raise _native.Error(
            "PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF) asks PyTorch for the allocator cudaMallocAsync, and "
            "gpupool.torch.enable() for gpupool: take `backend:cudaMallocAsync` out of the variable"
        )
    if backend == "pluggable":
        raise _native.Error(
            "PyTorch's allocator was changed already, by torch.cuda.memory.change_current_allocator or a library that "
            "calls it: leave that out, or use gpupool.torch.using(pool) beside it"
        )
