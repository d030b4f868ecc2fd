"""Builds the libraries of PyTorch's allocator that come with gpupool, one for each version of PyTorch.

Usage: allocators.py CACHE OUT. What PyTorch's packages have of use, and the libraries made from it, stay in CACHE, so
that the next time takes no network and no compiler. OUT gets ``allocator-2.11.so`` and so on. With ``--check LIBRARY``
the library for C and C++ is held to the same.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
from pytorch.fetch import VERSIONS, CannotFetch, fetch  # noqa: E402 # found by the path above

# What wheels for manylinux_2_28 may need: https://github.com/pypa/auditwheel, of the systems that have glibc 2.28.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (8,)}
MOST_BYTES = 1 << 20
# Of the library for C, which is all of gpupool's memory.
MOST_BYTES_OF_C = 4 << 20
OLD_SYSTEMS = HERE / "old_systems.cpp"


class WrongLibrary(Exception):
    """A library that must not be published; the message says why."""


def own_module(path: str) -> ModuleType:
    """Return a module of gpupool's own, without gpupool, which may not be built yet."""
    file = ROOT / "python" / "gpupool" / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compiler = own_module("_torch/compiler.py")


def build(version: str, cache: Path) -> Path:
    """Return the library for a version, made unless one of the same sources is there.

    Raises:
        CannotFetch: PyTorch's or CUDA's packages cannot be had.
        CompilationFailed: It does not compile.
        WrongLibrary: It would not run where gpupool does.
    """
    digest = hashlib.sha256()
    for path in (*compiler.sources(), Path(str(compiler.__file__)), OLD_SYSTEMS):
        digest.update(path.read_bytes())
    path = cache / "allocators" / digest.hexdigest()[:16] / f"allocator-{version}.so"
    if not path.is_file():
        torch, cuda = fetch(version, cache)
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}")
        compiler.compile_library(torch, [cuda], made, options=["-O2"], further=[OLD_SYSTEMS])
        check(made)
        made.replace(path)
    return path


def check(path: Path, most: int = MOST_BYTES) -> None:
    """Check that a library is small, and needs nothing newer than gpupool's wheel says.

    Raises:
        WrongLibrary: It is not so.
    """
    data = path.read_bytes()
    if len(data) > most:
        raise WrongLibrary(f"{path.name} has {len(data)} bytes, and may have {most}")
    for name, version in re.findall(rb"(?<=\0)(GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)(?=\0)", data):
        numbers = tuple(map(int, version.decode().split(".")))
        if numbers > NEWEST[name.decode()]:
            raise WrongLibrary(
                f"{path.name} needs {name.decode()}_{version.decode()}, which systems with glibc 2.28 lack: `nm -D` "
                f"shows for what; leave that out or define it in {OLD_SYSTEMS}"
            )


def main(cache: Path, out: Path) -> int:
    """Run the command; return its exit code."""
    try:
        # One after another, for they share CUDA's headers.
        for version in VERSIONS:
            fetch(version, cache)
        with ThreadPoolExecutor(os.cpu_count()) as executor:
            made = list(executor.map(build, VERSIONS, [cache] * len(VERSIONS)))
    except (CannotFetch, WrongLibrary, compiler.CompilationFailed) as error:
        print(f"allocators.py: {error}", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    for path in made:
        shutil.copy2(path, out)
        print(f"{out / path.name}: {path.stat().st_size >> 10} KiB")
    return 0


def main_of_check(path: Path) -> int:
    """Check the library for C; return the command's exit code."""
    try:
        check(path, MOST_BYTES_OF_C)
    except WrongLibrary as error:
        print(f"allocators.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        sys.exit(main_of_check(Path(sys.argv[2])))
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
