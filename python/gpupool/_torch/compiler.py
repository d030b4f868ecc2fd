"""The compiler that makes a library of this folder's C++ for one PyTorch, from that PyTorch's own headers.

It uses nothing of gpupool's but this folder, for the libraries that come with gpupool are compiled by it too.
"""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Where the libraries are that came with gpupool, and the sources.
FOLDER = Path(__file__).parent
SOURCES = FOLDER
TABLE = FOLDER.parent / "include"

# The commands that are tried after $CXX, as PyTorch and most build tools do.
_COMMANDS = ("c++", "g++", "clang++")
# A header for each wheel of CUDA's that is needed.
_HEADERS = {"cuda_runtime_api.h": "nvidia-cuda-runtime", "crt/host_config.h": "nvidia-cuda-crt"}
# Where CUDA's toolkit and the packages of distributions put them.
_USUAL = ("/usr/local/cuda/include", "/usr/include")
# The seconds that a compiler may take.
_PATIENCE = 600


class CompilationFailed(Exception):
    """No library could be made; the message says why, and what mends it."""


def sources() -> list[Path]:
    """Return the files that a library is made of."""
    return [*_units(), *sorted(SOURCES.glob("*.h")), TABLE / "gpupool.h"]


def _units() -> list[Path]:
    return sorted(SOURCES.glob("*.cpp"))


def find_compiler() -> list[str]:
    """Return the command of a C++ compiler: that of ``CXX``, or the first that is there.

    Raises:
        CompilationFailed: There is none.
    """
    if named := shlex.split(os.environ.get("CXX", "")):
        if shutil.which(named[0]) is None:
            raise CompilationFailed(
                f"CXX={os.environ['CXX']} is no command here: set CXX to a C++ compiler, or unset it"
            )
        return named
    for command in _COMMANDS:
        if shutil.which(command):
            return [command]
    raise CompilationFailed(
        f"there is no C++ compiler ({', '.join(_COMMANDS)}): install one, such as the package g++ of your system, or "
        "set CXX"
    )


def cuda_headers(version: str, places: Iterable[Path] = ()) -> list[Path]:
    """Return the folders with CUDA's headers, for PyTorch's version of CUDA, such as "13.0".

    Args:
        version: The version. Headers of the same major version will do.
        places: Folders to look into rather than where CUDA is installed.

    Raises:
        CompilationFailed: Headers are missing.
    """
    major = version.split(".")[0]
    found = [
        folder
        for folder in dict.fromkeys(places or _cuda_places(major))
        if any((folder / header).is_file() for header in _HEADERS) and _major(folder) in (None, major)
    ]
    missing = [header for header in _HEADERS if not any((folder / header).is_file() for folder in found)]
    if missing:
        suffix = "" if int(major) >= 13 else f"-cu{major}"
        packages = sorted({_HEADERS[header] if int(major) >= 13 else "nvidia-cuda-runtime" for header in missing})
        wanted = " ".join(f"'{package}{suffix}=={version}.*'" for package in packages)
        raise CompilationFailed(
            f"CUDA {major}'s headers {' and '.join(missing)} are missing: set CUDA_HOME to a CUDA toolkit {version}, "
            f"or pip install {wanted}"
        )
    return found


def _cuda_places(major: str) -> Iterable[Path]:
    """Yield the folders where CUDA's headers may be: what was named, NVIDIA's wheels, the usual places."""
    for variable in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        if home := os.environ.get(variable):
            yield Path(home) / "include"
    for place in sys.path:
        nvidia = Path(place) / "nvidia"
        # From CUDA 13 on all wheels share a folder; those before have one each.
        yield nvidia / f"cu{major}" / "include"
        yield nvidia / "cuda_runtime" / "include"
        yield nvidia / "cuda_nvcc" / "include"
    if prefix := os.environ.get("CONDA_PREFIX"):
        yield Path(prefix) / "include"
        yield Path(prefix) / "targets" / "x86_64-linux" / "include"
    if nvcc := shutil.which("nvcc"):
        yield Path(nvcc).resolve().parents[1] / "include"
    yield from map(Path, _USUAL)


def _major(folder: Path) -> str | None:
    """Return the major version of CUDA whose headers are in a folder; None if they do not tell."""
    try:
        text = (folder / "cuda_runtime_api.h").read_text(errors="replace")
    except OSError:
        return None
    told = re.search(r"^#define\s+CUDART_VERSION\s+(\d+)\d{3}$", text, re.MULTILINE)
    return told[1] if told else None


def compile_library(
    torch: Path, cuda: Sequence[Path], out: Path, *, options: Sequence[str] = (), further: Sequence[Path] = ()
) -> None:
    """Compile the library, its files side by side, and link it to PyTorch's, which is in memory when it is loaded.

    A caller of ``enable()`` waits for it, so it is optimized only as far as takes little more time than to read
    PyTorch's headers.

    Args:
        torch: The folder of the package, with ``include`` and ``lib``.
        cuda: The folders with CUDA's headers.
        out: The file to make.
        options: More options for the compiler.
        further: More files to compile.

    Raises:
        CompilationFailed: It does not compile, or there is no compiler.
    """
    headers = torch / "include"
    if not (headers / "c10" / "cuda" / "CUDACachingAllocator.h").is_file():
        raise CompilationFailed(f"PyTorch's headers are not in {headers}: install PyTorch from its own wheel")
    command = find_compiler()
    includes = [option for folder in (TABLE, headers, *cuda) for option in ("-isystem", str(folder))]
    flags = [
        "-O1",
        "-std=c++20",
        "-fPIC",
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        "-w",
        *includes,
        *options,
    ]
    units = [*_units(), *further]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        objects = [str(Path(folder) / f"{number}.o") for number in range(len(units))]
        commands = [[*command, *flags, "-c", str(unit), "-o", made] for unit, made in zip(units, objects, strict=True)]
        # What the first that failed raised is raised here.
        list(pool.map(run, commands, itertools.repeat(SOURCES)))
        libraries = (f"-L{torch / 'lib'}", "-l:libc10_cuda.so", "-l:libc10.so", "-Wl,--no-undefined", "-s")
        run([*command, "-shared", *objects, "-o", str(out), *libraries], SOURCES)


def run(arguments: Sequence[str], sources: Path) -> None:
    """Run a command that compiles these sources.

    Raises:
        CompilationFailed: It fails, or cannot be run.
    """
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, errors="replace", timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilationFailed(f"{arguments[0]} could not compile {sources}: {error}") from error
    if done.returncode:
        raise CompilationFailed(
            f"{arguments[0]} could not compile {sources} (exit code {done.returncode}): {_first_error(done.stderr)}"
        )


def _first_error(text: str) -> str:
    """Return the line of a compiler's output that matters most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # What the linker says comes before the compiler tells that it failed.
    signs = ("undefined reference", "multiple definition", "cannot find", "error")
    found = (line for line in lines if any(sign in line.lower() for sign in signs))
    return next(found, lines[-1] if lines else "it said nothing")
