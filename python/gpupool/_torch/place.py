"""Who is PyTorch's allocator, of devices' memory and of pinned memory: gpupool takes a place, and gives it back."""

import threading
import warnings
from typing import Any

from gpupool import _native
from gpupool._torch import library, pluggable

# An RLock, since finalizers that the garbage collector runs meanwhile may enter it again.
_lock = threading.RLock()
# The library of this folder's C++, once it was loaded; it is loaded once, for it stays in the process.
_library: library.Library | None = None
# How gpupool is PyTorch's allocator: None, "full", or "pluggable", which is for good.
_way: str | None = None
# Whether it ever was "full".
_was_taken = False
# Whether PyTorch's pinned memory comes from gpupool.
_has_pinned = False


def way() -> str | None:
    """Return how gpupool is PyTorch's allocator: "full", "pluggable", or None where it is not."""
    return _way


def was_taken() -> bool:
    """Return True if gpupool is PyTorch's allocator, or was: its library stays, for what was made meanwhile."""
    return _was_taken


def take(torch: Any) -> None:
    """Make gpupool PyTorch's allocator; a second call does nothing.

    Raises:
        gpupool.Error: Another allocator has the place, or it is too late for the pluggable one.
        gpupool.LibraryNotFound: PyTorch lacks what is needed.
    """
    global _way, _was_taken
    with _lock:
        if _way is not None:
            return
        _refuse_others(torch)
        try:
            loaded = _load(torch)
        except library.NoLibrary as reason:
            lost = _take_pluggable(torch, reason)
            _way = "pluggable"
            warnings.warn(lost, RuntimeWarning, stacklevel=3)
            return
        loaded.install()
        _way, _was_taken = "full", True


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
        try:
            loaded = _load(torch)
        except library.NoLibrary as reason:
            raise _native.LibraryNotFound(
                f"PyTorch's pinned memory cannot come from gpupool: {_missing(torch, reason)}. Mend that, or leave out "
                "pinned=True"
            ) from reason
        loaded.install_pinned()
        _has_pinned = True
        return True


def give_back() -> None:
    """Give the place back to the allocator that was there. The pluggable allocator stays: PyTorch has no way back.

    Raises:
        gpupool.Error: The library refuses.
    """
    global _way
    with _lock:
        if _way == "full" and _library is not None:
            _library.uninstall()
            _way = None


def give_back_pinned() -> None:
    """Let PyTorch's own allocator of pinned memory serve what is new.

    Raises:
        gpupool.Error: The library refuses.
    """
    global _has_pinned
    with _lock:
        if _has_pinned and _library is not None:
            _library.uninstall_pinned()
            _has_pinned = False


def adopt(device: int, torch_id: tuple[int, int], own_id: tuple[int, int]) -> None:
    """Make a pool that PyTorch has just made one of gpupool's, which is its allocator.

    Raises:
        gpupool.Error: One of them is gone.
    """
    if _library is not None:
        _library.adopt(device, torch_id, own_id)


def _load(torch: Any) -> library.Library:
    """Return the library, loaded at the first call.

    Raises:
        library.NoLibrary: There is none.
    """
    global _library
    if _library is None:
        _library = library.load(torch)
    return _library


def _missing(torch: Any, reason: library.NoLibrary) -> str:
    return f"gpupool has no library for PyTorch {torch.__version__} and could not make one: {reason}"


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


def _take_pluggable(torch: Any, reason: library.NoLibrary) -> str:
    """Do with what every PyTorch has, and return what is lost by that and how to mend it."""
    why = _missing(torch, reason)
    try:
        pluggable.install(torch)
    except _native.Error as error:
        raise type(error)(f"{error}. At any time it could be done by gpupool's own library, but {why}") from reason
    return (
        f"{why}. PyTorch takes its memory from gpupool as a pluggable allocator, so it has no memory statistics, "
        "snapshots, torch.cuda.MemPool and graph trees; mend the above, or install a gpupool made for this PyTorch"
    )
