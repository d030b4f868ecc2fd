"""The library that is gpupool's allocator for the PyTorch that runs: found, or compiled at first use, and loaded."""

import ctypes
import os
import re
from pathlib import Path
from typing import Any

from gpupool import _native
from gpupool._compiled import cache
from gpupool._compiled.cache import NoLibrary as NoLibrary
from gpupool._torch import compiler

# The headers that the allocators' own classes are made from; a library is of use for these alone.
_INTERFACE = (
    "c10/cuda/CUDACachingAllocator.h",
    "c10/core/CachingDeviceAllocator.h",
    "c10/core/Allocator.h",
    "ATen/core/CachingHostAllocator.h",
)


class PoolId(ctypes.Structure):
    """gpupool_pool_id."""

    _fields_ = (("first", ctypes.c_uint64), ("second", ctypes.c_uint64))


# The functions of the library, each with the types of its arguments and what is said where it refuses.
_FUNCTIONS: dict[str, tuple[list[Any], str]] = {
    "install": ([ctypes.c_void_p], "could not become PyTorch's allocator"),
    "uninstall": ([], "could not give PyTorch's allocator its place back"),
    "install_pinned": ([ctypes.c_void_p] * 3, "could not become PyTorch's allocator of pinned memory"),
    "uninstall_pinned": ([], "could not give the place of PyTorch's pinned memory back"),
    "adopt": ([ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, PoolId], "could not use a pool in PyTorch"),
    "version": ([], ""),
}
# Half a gigabyte, to which the library is not linked for two functions: at::getHostAllocator and at::setHostAllocator.
_TORCH_CPU = "libtorch_cpu.so"
_OF_TORCH_CPU = (
    "_ZN2at16getHostAllocatorEN3c1010DeviceTypeE",
    "_ZN2at16setHostAllocatorEN3c1010DeviceTypeEPNS_13HostAllocatorEh",
)


class Library:
    """The functions of ``allocator.cpp`` and ``host_allocator.cpp``, loaded into the process."""

    def __init__(self, path: Path, version: str) -> None:
        """Load it.

        Args:
            path: The file.
            version: The major and minor version of PyTorch that it must be for, such as "2.11".

        Raises:
            NoLibrary: It cannot be loaded, or is for another version.
        """
        try:
            # ctypes resolves all symbols at once, so what PyTorch no longer has is missed here.
            functions = ctypes.CDLL(str(path))
            self._functions = {name: functions[f"gpupool_torch_{name}"] for name in _FUNCTIONS}
        except (OSError, AttributeError) as error:
            raise NoLibrary(f"{path} cannot be loaded: {error}") from error
        for name, (types, _) in _FUNCTIONS.items():
            self._functions[name].restype, self._functions[name].argtypes = ctypes.c_char_p, types
        told = _text(self._functions["version"]())
        if told != version:
            raise NoLibrary(f"{path} is for PyTorch {told}, not for {version}")
        self.path = path

    def call(self, name: str, *arguments: Any) -> None:
        """Call one of the functions in :data:`_FUNCTIONS`; a second call to take a place does nothing.

        Raises:
            gpupool.Error: It refuses.
        """
        answer = self._functions[name](*arguments)
        if answer is not None:
            raise _native.Error(f"{self.path} {_FUNCTIONS[name][1]}: {_text(answer)}")


def _text(answer: bytes | None) -> str:
    return (answer or b"").decode(errors="replace")


def table() -> int:
    """Return the address of gpupool's table of C functions."""
    point = ctypes.pythonapi.PyCapsule_GetPointer
    point.restype, point.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(point(_native.c_api.capsule, b"gpupool.c_api") or 0)


def functions_of_torch_cpu() -> list[int]:
    """Return the addresses of the functions by which PyTorch's allocator of pinned memory is told and set.

    Raises:
        gpupool.LibraryNotFound: PyTorch has no such library in memory, or no such functions.
    """
    try:
        # The copy that is in memory, wherever that is.
        library = ctypes.CDLL(_TORCH_CPU, mode=os.RTLD_NOLOAD)
        return [ctypes.cast(library[symbol], ctypes.c_void_p).value or 0 for symbol in _OF_TORCH_CPU]
    except (OSError, AttributeError) as error:
        raise _native.LibraryNotFound(
            f"PyTorch's allocator of pinned memory cannot be set, by at::setHostAllocator of {_TORCH_CPU}: {error}. "
            "Use a PyTorch of its own wheel, or gpupool.torch.enable() without pinned=True"
        ) from error


def load(torch: Any) -> Library:
    """Load the library for the PyTorch that runs: one that came with gpupool, one of the cache, or one made now.

    Raises:
        NoLibrary: There is none, and none could be made.
    """
    release = re.match(r"(\d+\.\d+)", str(torch.__version__))
    version = release[1] if release else ""
    path = compiler.FOLDER / f"allocator-{version}.so"
    finders = (
        lambda: cache.shipped(path, torch.__version__),
        lambda: cache.kept(cache_path(torch)),
        lambda: _compiled(torch, version),
    )
    return cache.first(finders, lambda path: Library(path, version))


def _compiled(torch: Any, version: str) -> Path:
    """Compile the library into the cache."""
    if torch.version.cuda is None:
        raise NoLibrary(f"PyTorch {torch.__version__} is not built for CUDA, which alone gpupool's allocator is for")
    cuda = compiler.cuda_headers(str(torch.version.cuda))
    options = [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    with cache.compiling(f"allocator for PyTorch {torch.__version__}", cache_path(torch)) as (made, path):
        compiler.compile_library(Path(torch.__file__).parent, cuda, made, options=options)
        # A library that cannot be used is not kept.
        Library(made, version)
    return path


def cache_path(torch: Any) -> Path:
    """Return the file that a library compiled for this PyTorch has: another for each that could differ."""
    versions = (torch.__version__, torch.version.cuda, torch._C._GLIBCXX_USE_CXX11_ABI)
    headers = Path(torch.__file__).parent / "include"
    files = (*compiler.sources(), *(headers / name for name in _INTERFACE))
    return cache.path_for("torch/allocator", ".so", versions, files)
