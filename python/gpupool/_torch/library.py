"""The library that is gpupool's allocator for the PyTorch that runs: found, or compiled at first use, and loaded."""

import contextlib
import ctypes
import hashlib
import logging
import os
import re
import time
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
_FUNCTIONS = ("version", "install", "uninstall", "install_pinned", "uninstall_pinned", "adopt")
# Half a gigabyte, to which the library is not linked for two functions: at::getHostAllocator and at::setHostAllocator.
_TORCH_CPU = "libtorch_cpu.so"
_OF_TORCH_CPU = (
    "_ZN2at16getHostAllocatorEN3c1010DeviceTypeE",
    "_ZN2at16setHostAllocatorEN3c1010DeviceTypeEPNS_13HostAllocatorEh",
)


class _PoolId(ctypes.Structure):
    """gpupool_pool_id."""

    _fields_ = (("first", ctypes.c_uint64), ("second", ctypes.c_uint64))


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
            answering = [functions[f"gpupool_torch_{name}"] for name in _FUNCTIONS]
        except (OSError, AttributeError) as error:
            raise NoLibrary(f"{path} cannot be loaded: {error}") from error
        for function in answering:
            function.restype = ctypes.c_char_p
        tell, self._install, self._uninstall, self._install_pinned, self._uninstall_pinned, self._adopt = answering
        self._install.argtypes = [ctypes.c_void_p]
        self._install_pinned.argtypes = [ctypes.c_void_p] * 3
        self._adopt.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, _PoolId]
        told = _text(tell())
        if told != version:
            raise NoLibrary(f"{path} is for PyTorch {told}, not for {version}")
        self.path = path

    def install(self) -> None:
        """Make it PyTorch's allocator; a second call does nothing.

        Raises:
            gpupool.Error: It refuses.
        """
        _check(self._install(table()), f"{self.path} could not become PyTorch's allocator")

    def uninstall(self) -> None:
        """Give the place back to the allocator that was there.

        Raises:
            gpupool.Error: It refuses.
        """
        _check(self._uninstall(), f"{self.path} could not give PyTorch's allocator its place back")

    def install_pinned(self) -> None:
        """Make it PyTorch's allocator of pinned memory; a second call does nothing.

        Raises:
            gpupool.LibraryNotFound: PyTorch lacks the functions by which that is set.
            gpupool.Error: It refuses.
        """
        answer = self._install_pinned(table(), *_functions_of_torch_cpu())
        _check(answer, f"{self.path} could not become PyTorch's allocator of pinned memory")

    def uninstall_pinned(self) -> None:
        """Let the allocator of pinned memory that was there serve what is new.

        Raises:
            gpupool.Error: It refuses.
        """
        _check(self._uninstall_pinned(), f"{self.path} could not give the place of PyTorch's pinned memory back")

    def adopt(self, device: int, torch_id: tuple[int, int], own_id: tuple[int, int]) -> None:
        """Make a pool that PyTorch has just made one of gpupool's.

        Raises:
            gpupool.Error: One of them is gone.
        """
        _check(self._adopt(device, *torch_id, _PoolId(*own_id)), f"pool {own_id} could not be used in PyTorch")


def _text(answer: bytes | None) -> str:
    return (answer or b"").decode(errors="replace")


def _check(answer: bytes | None, what: str) -> None:
    if answer is not None:
        raise _native.Error(f"{what}: {_text(answer)}")


def table() -> int:
    """Return the address of gpupool's table of C functions."""
    point = ctypes.pythonapi.PyCapsule_GetPointer
    point.restype, point.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(point(_native.c_api.capsule, b"gpupool.c_api") or 0)


def _functions_of_torch_cpu() -> list[int]:
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
    reasons = []
    for find in (_shipped, _cached, _compiled):
        try:
            path = find(torch, version)
            if path is not None:
                return Library(path, version)
        except (NoLibrary, compiler.CompilationFailed) as error:
            reasons.append(str(error))
    raise NoLibrary("; ".join(dict.fromkeys(reasons)))


def _shipped(torch: Any, version: str) -> Path | None:
    """Return the library that came with gpupool for this version.

    Releases of a version share one interface; what was built between releases may have any.
    """
    path = compiler.FOLDER / f"allocator-{version}.so"
    is_release = re.fullmatch(r"\d+\.\d+\.\d+(\+\w+)?", str(torch.__version__))
    return path if is_release and path.is_file() else None


def _cached(torch: Any, version: str) -> Path | None:
    """Return the library that was compiled before."""
    return cache.kept(cache_path(torch))


def _compiled(torch: Any, version: str) -> Path:
    """Compile the library into the cache."""
    if torch.version.cuda is None:
        raise NoLibrary(f"PyTorch {torch.__version__} is not built for CUDA, which alone gpupool's allocator is for")
    began = time.monotonic()
    cuda = compiler.cuda_headers(str(torch.version.cuda))
    options = [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    with cache.replacing(cache_path(torch)) as (made, path):
        compiler.compile_library(Path(torch.__file__).parent, cuda, made, options=options)
        # A library that cannot be used is not kept.
        Library(made, version)
    logging.getLogger("gpupool.library").info(
        "allocator for PyTorch %s: compiled to %s in %.1f s", torch.__version__, path, time.monotonic() - began
    )
    return path


def cache_path(torch: Any) -> Path:
    """Return the file that a library compiled for this PyTorch has: another for each that could differ."""
    versions = (torch.__version__, torch.version.cuda, _native.__version__, torch._C._GLIBCXX_USE_CXX11_ABI)
    digest = hashlib.sha256(repr(versions).encode())
    headers = Path(torch.__file__).parent / "include"
    for file in (*compiler.sources(), *(headers / name for name in _INTERFACE)):
        with contextlib.suppress(OSError):
            digest.update(file.read_bytes())
    return cache.folder() / "torch" / f"allocator-{torch.__version__}-{digest.hexdigest()[:16]}.so"
