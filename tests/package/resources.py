"""Builds the modules with RMM's resources that come with gpupool, one for each version of RMM.

Usage: resources.py CACHE OUT, by an interpreter with Cython. What RMM's packages have of use, and the modules made from
it, stay in CACHE. OUT gets ``resource-26.10.abi3.so`` and so on. One is for the RMM of CUDA 12 and of CUDA 13 alike: of
a version both have the same headers, which are compared.
"""

import hashlib
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from allocators import HERE, OLD_SYSTEMS, WrongLibrary, check, compiler, own_module
from pytorch.fetch import CUDA, CannotFetch, extract

# The versions that gpupool's wheel has modules for.
VERSIONS = ("26.6", "26.8", "26.10")
# The newest of CUDA 13's first minor version: what is used of its headers is the same in all.
TOOLKIT = "13.0"
_HEADERS = re.compile(r"librmm/(include/|lib64/librmm\.so$)|librmm.*METADATA$")
_DECLARATIONS = re.compile(r"rmm/.*(\.pxd|__init__\.py)$")
_BINDINGS = re.compile(r"cuda/bindings/[^/]*(\.px[di]|__init__\.py)$")
_LOGGER = re.compile(r"rapids_logger/include/")


commands = own_module("_rmm/commands.py")


def fetched(folder: Path, requirement: str, wanted: re.Pattern[str]) -> Path:
    """Return a folder with files of a package, once they are there."""
    out = folder / re.sub(r"\W+", "-", requirement)
    if not out.is_dir():
        extract(requirement, wanted, out)
    return out


def digest_of(folder: Path) -> str:
    """Return what tells a folder's files from others."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def build(version: str, cache: Path) -> Path:
    """Return the module for a version, made unless one of the same sources is there.

    Raises:
        CannotFetch: A package cannot be had.
        compiler.CompilationFailed: It does not compile.
        WrongLibrary: It would not run where gpupool does, or CUDA 12's RMM is another.
    """
    rmm = fetched(cache, f"librmm-cu13=={version}.*", _HEADERS)
    declarations = fetched(cache, f"rmm-cu13=={version}.*", _DECLARATIONS)
    for name, folder, wanted in (("librmm", rmm, _HEADERS), ("rmm", declarations, _DECLARATIONS)):
        other = fetched(cache, f"{name}-cu12=={version}.*", wanted)
        paths = [Path(each, name, "include" if name == "librmm" else "") for each in (folder, other)]
        if digest_of(paths[0]) != digest_of(paths[1]):
            raise WrongLibrary(f"{name} {version} is not the same for CUDA 12 and 13: each needs a module of its own")
    bindings = fetched(cache, f"cuda-bindings=={TOOLKIT}.*", _BINDINGS)
    told = "".join(path.read_text() for path in rmm.glob("*.dist-info/METADATA"))
    needed = re.search(r"^Requires-Dist: (rapids-logger==\S+)$", told, re.MULTILINE)
    logger = fetched(cache, needed[1] if needed else "rapids-logger", _LOGGER)
    cuda = [
        fetched(cache, f"nvidia-cuda-{name}=={TOOLKIT}.*", CUDA) / "nvidia" / "cu13" / "include"
        for name in ("runtime", "crt")
    ]
    digest = hashlib.sha256()
    for path in (*commands.sources(), Path(str(commands.__file__)), OLD_SYSTEMS, HERE / "resources.py"):
        digest.update(path.read_bytes())
    path = cache / "resources" / digest.hexdigest()[:16] / f"resource-{version}.abi3.so"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        made, code = path.with_suffix(f".{os.getpid()}"), path.with_suffix(".cpp")
        compiler.run(commands.cython(sys.executable, [declarations, bindings], code), commands.SOURCE)
        headers = [Path(sysconfig.get_path("include")), logger / "rapids_logger" / "include", *cuda]
        command = commands.cxx(compiler.find_compiler(), code, rmm / "librmm", headers, made, str(OLD_SYSTEMS))
        compiler.run(command, commands.SOURCE)
        check(made)
        made.replace(path)
    return path


def main(cache: Path, out: Path) -> int:
    """Run the command; return its exit code."""
    try:
        made = [build(version, cache) for version in VERSIONS]
    except (CannotFetch, WrongLibrary, compiler.CompilationFailed) as error:
        print(f"resources.py: {error}", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    for path in made:
        shutil.copy2(path, out)
        print(f"{out / path.name}: {path.stat().st_size >> 10} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
