"""Builds the ABI doubles of tests/abi: shared libraries with the real names and signatures, and nothing behind."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "abi"

SYMBOLS = {
    "cusparse": {
        "CREATE": "cusparseCreate",
        "DESTROY": "cusparseDestroy",
        "SET_STREAM": "cusparseSetStream",
        "PROPERTY": "cusparseGetProperty",
        "STATUS_NAME": "cusparseGetErrorName",
    },
    "cublas": {
        "CREATE": "cublasCreate_v2",
        "DESTROY": "cublasDestroy_v2",
        "SET_STREAM": "cublasSetStream_v2",
        "GET_STREAM": "cublasGetStream_v2",
        "PROPERTY": "cublasGetProperty",
        "STATUS_NAME": "cublasGetStatusName",
    },
    "cudss": {
        "CREATE": "cudssCreate",
        "DESTROY": "cudssDestroy",
        "SET_STREAM": "cudssSetStream",
        "PROPERTY": "cudssGetProperty",
    },
}


def _compile(source: str, file: Path, *flags: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-w", f"-Wl,-soname,{file.name}", *flags, str(SOURCES / source)]
    subprocess.run([*command, "-o", str(file)], check=True)
    return file


def build_driver(folder: Path, *flags: str) -> Path:
    """Build a driver, for LD_LIBRARY_PATH."""
    return _compile("libcuda.c", folder / "libcuda.so.1", *flags)


def build_library(
    name: str,
    file: Path,
    *,
    version: tuple[int, int, int] = (1, 2, 3),
    without: str | None = None,
    needs: tuple[str, Path] | None = None,
) -> Path:
    """Build a library. `needs` is a symbol and the library that has it, without a hint where that is."""
    symbols = {kind: symbol for kind, symbol in SYMBOLS[name].items() if kind != without}
    flags = [f"-D{kind}={symbol}" for kind, symbol in symbols.items()]
    flags.append("-DVERSION=" + ",".join(map(str, version)))
    if needs:
        symbol, needed = needs
        flags += [f"-DNEEDS={symbol}", "-Wl,--no-as-needed", f"-L{needed.parent}", f"-l:{needed.name}"]
    return _compile("library.c", file, *flags)
