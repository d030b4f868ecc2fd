"""Processes that compile PyTorch's allocator into one cache at once.

Usage: torch_library.py FOLDER, of a TorchInstallation.
"""

import os
import subprocess
import sys
from pathlib import Path

from gpupool._compiled.cache import kept
from gpupool._torch import compiler, library

# A stand-in is beside the tests, not in programs/.
sys.path.insert(0, str(Path(__file__).parents[2]))
from torch_double import Torch


def compile_one(folder: Path) -> None:
    compiler.SOURCES = folder / "source"
    compiler.FOLDER = folder / "shipped"
    torch = Torch(folder / "torch")
    cache = library.cache_path(torch)
    assert kept(cache) == (cache if cache.is_file() else None)
    # As if the other was not done yet.
    path = library._compiled(torch, "2.11")
    assert library.Library(path, "2.11").path == cache


def main(folder: Path) -> None:
    others = [subprocess.Popen([sys.executable, __file__, str(folder), "one"], env=os.environ) for _ in range(3)]
    compile_one(folder)
    assert [other.wait() for other in others] == [0, 0, 0]


if __name__ == "__main__":
    compile_one(Path(sys.argv[1])) if len(sys.argv) > 2 else main(Path(sys.argv[1]))
