"""Builds the ABI doubles of tests/abi: shared libraries with the real names and signatures, and checks behind them."""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import gpupool
import pytest
from programs.shared.libraries import LIBRARIES

SOURCES = Path(__file__).parents[1] / "abi"
INCLUDE = Path(gpupool.get_include())
KEPT = Path(__file__).parents[2] / "build" / "doubles"


def compile_double(source: str, file: Path, *flags: str, language: str = "cc") -> Path:
    """Compile a file of tests/abi to a library, or skip the test where there is no compiler.

    What the same sources and flags gave before is copied: a file of its own is a library of its own for the loader.
    """
    compiler = shutil.which(language)
    if compiler is None:
        pytest.skip(f"needs a compiler, {language}")
    quiet = [] if "-Werror" in flags else ["-w"]
    command = [compiler, "-shared", "-fPIC", *quiet, f"-Wl,-soname,{file.name}", *flags, str(SOURCES / source)]
    texts = [text.read_bytes() for folder in (SOURCES, INCLUDE) for text in sorted(folder.iterdir())]
    kept = KEPT / hashlib.sha256(b"\0".join([*map(str.encode, command), *texts])).hexdigest()[:32]
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        # Beside it and renamed, since tests run in several processes.
        with tempfile.TemporaryDirectory(dir=KEPT) as folder:
            subprocess.run([*command, "-o", f"{folder}/{file.name}"], check=True)
            Path(folder, file.name).rename(kept)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    shutil.copyfile(kept, file)
    return file


def build_driver(folder: Path, *flags: str) -> Path:
    """Build a driver of NVIDIA's, for LD_LIBRARY_PATH."""
    return compile_double("libcuda.c", folder / "libcuda.so.1", *flags)


def build_stub(folder: Path) -> Path:
    """Build what CUDA's toolkit has to link with in place of the driver."""
    return compile_double("libcuda.c", folder / "libcuda.so", "-DSTUB")


def build_hip(file: Path, *flags: str) -> Path:
    """Build HIP's library."""
    return compile_double("libamdhip64.c", file, *flags)


def build_nvml(folder: Path, *flags: str) -> Path:
    """Build the library of NVIDIA's driver that tells of limits, for LD_LIBRARY_PATH."""
    return compile_double("libnvidia-ml.c", folder / "libnvidia-ml.so.1", *flags)


def build_holder(file: Path) -> Path:
    """Build a library that takes device memory for itself, under any name."""
    return compile_double("holder.c", file)


def build_nvtx(file: Path) -> Path:
    """Build a profiler's library, for NVTX_INJECTION64_PATH."""
    return compile_double("nvtx.c", file)


def build_torch(file: Path) -> Path:
    """Build what the linker finds in place of PyTorch's library."""
    return compile_double("libc10_cuda.cpp", file, "-std=c++17", language="c++")


def build_torch_cuda(file: Path) -> Path:
    """Build the library that has PyTorch's pluggable allocators."""
    return compile_double("libtorch_cuda.cpp", file, "-std=c++17", language="c++")


def build_library(
    name: str,
    file: Path,
    *,
    version: tuple[int, int, int] = (1, 2, 3),
    without: str | None = None,
    needs: tuple[str, Path] | None = None,
    handler_stays: int | None = None,
) -> Path:
    """Build a library.

    `without` is a kind of symbol, or "SETTINGS" for all of them. `needs` is a symbol and the library that has it,
    without a hint where that is. `handler_stays` is the status of taking a handler of memory off, where that is
    refused.
    """
    library = LIBRARIES[name]
    symbols = {"CREATE": library.create, "DESTROY": library.destroy, **library.symbols}
    flags = [f"-D{kind}={symbol}" for kind, symbol in symbols.items() if kind != without]
    flags.append("-DVERSION=" + ",".join(map(str, version)))
    flags.append("-DSTATUSES=" + ",".join(f'{{{code},"{status}"}}' for code, status in library.statuses.items()))
    flags.append(f'-DDRIVER="{library.driver}"')
    if without != "SETTINGS":
        flags.append("-DSETTINGS=" + " ".join(setting.macro for setting in library.settings))
    if library.leaves_unfinished:
        flags.append("-DUNFINISHED")
    if library.callers_struct:
        flags.append(f"-DCALLERS_STRUCT={library.callers_struct}")
    flags.append(f"-DNO_HANDLER={library.no_handler}")
    if handler_stays is not None:
        flags.append(f"-DHANDLER_STAYS={handler_stays}")
    if library.uses_context:
        flags.append("-DUSES_CONTEXT")
    if needs:
        symbol, needed = needs
        flags += [f"-DNEEDS={symbol}", "-Wl,--no-as-needed", f"-L{needed.parent}", f"-l:{needed.name}"]
    return compile_double(library.source, file, *flags)


def build_wheel(name: str, site_packages: Path) -> Path:
    """Build a library where its wheel puts it."""
    return build_library(name, site_packages / LIBRARIES[name].file)
