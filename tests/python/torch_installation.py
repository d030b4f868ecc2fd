"""A machine with a stand-in for PyTorch, its headers and CUDA's, and a stand-in for gpupool's allocator in C++."""

from pathlib import Path

from abi import SOURCES, build_torch
from torch_double import Torch

VERSION = "2.11.0+cu130"


class TorchInstallation:
    """The folders of what is installed there."""

    def __init__(self, folder: Path) -> None:
        self.torch, self.cuda, self.source = folder / "torch", folder / "cuda", folder / "source"
        self.cache, self.shipped = folder / "cache", folder / "shipped"
        build_torch(self.torch / "lib" / "libc10_cuda.so")
        (self.torch / "lib" / "libc10.so").symlink_to("libc10_cuda.so")
        self.write_interface()
        (self.cuda / "include" / "crt").mkdir(parents=True)
        (self.cuda / "include" / "crt" / "host_config.h").touch()
        self.write_cuda(13)
        self.source.mkdir()
        (self.source / "allocator.cpp").write_text((SOURCES / "torch_allocator.cpp").read_text())
        self.shipped.mkdir()

    def write_interface(self, version: str = "2.11", refuses: int = 0) -> None:
        """Write PyTorch's header, which tells the version that a library is made for."""
        header = self.torch / "include" / "c10" / "cuda" / "CUDACachingAllocator.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(f'#define PYTORCH "{version}"\n#define REFUSES {refuses}\n')

    def write_cuda(self, major: int) -> None:
        """Write CUDA's header, which tells its version."""
        (self.cuda / "include" / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {major}000\n")

    def torch_as_imported(self, version: str = VERSION) -> Torch:
        """Return PyTorch's module."""
        torch = Torch(self.torch)
        torch.__version__ = version
        return torch
