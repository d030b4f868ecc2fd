"""PyTorch's pluggable allocator over gpupool: the way where there is no library of ``allocator.cpp``."""

import ctypes
import os
from typing import Any

from gpupool import _native


def install(torch: Any) -> None:
    """Make gpupool's functions PyTorch's allocator, for as long as the process lives.

    Raises:
        gpupool.Error: PyTorch has used CUDA already.
        gpupool.LibraryNotFound: PyTorch's library lacks what is needed.
    """
    library = _symbols(torch)

    def address_of(symbol: str) -> int:
        try:
            return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
        except AttributeError as error:
            raise _native.LibraryNotFound(
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
        raise _native.Error(
            "PyTorch has used CUDA already, and its allocator cannot be changed any more: call gpupool.torch.enable() "
            "before the first tensor on a GPU, or use gpupool.torch.using(pool)"
        ) from error


def _symbols(torch: Any) -> ctypes.CDLL:
    """Return PyTorch's library for CUDA, which leads to all that it was linked with."""
    try:
        return ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10_cuda.so"))
    except OSError as error:
        raise _native.LibraryNotFound(f"PyTorch {torch.__version__} was built without CUDA: {error}") from error
