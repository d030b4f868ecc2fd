"""Handles in C++: cuBLAS itself says which stream each has that gpupool_handles.hpp returns."""

import os
import shutil
import subprocess
from pathlib import Path

import gpupool
import pytest
from gpu_helpers import pool_or_skip

ROOT = Path(__file__).parents[2]


@pytest.fixture
def program(tmp_path):
    """Return the program that `make gpu` compiled, or compile it here."""
    built = ROOT / "bin" / "cublas_handles"
    if built.is_file():
        return built
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a compiler, c++, or the folder that `make gpu` builds")
    library, out = Path(library_or_skip()), tmp_path / "cublas_handles"
    source = ROOT / "tests" / "cpp" / "cublas_handles.cpp"
    options = ["-std=c++17", f"-I{gpupool.get_include()}", f"-L{library.parent}", f"-l:{library.name}"]
    subprocess.run([compiler, str(source), "-o", str(out), *options, "-pthread", "-ldl"], check=True)
    return out


def library_or_skip():
    """Return the library for C and C++, or skip the test where gpupool was installed without it."""
    try:
        return gpupool.get_library()
    except gpupool.LibraryNotFound:
        pytest.skip("needs the library for C and C++")


def test_cublas_says_which_stream_its_handles_have(program):
    cublas, folders = pool_or_skip("cublas").path, [str(Path(library_or_skip()).parent)]
    if others := os.environ.get("LD_LIBRARY_PATH"):
        folders.append(others)
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders), "GPUPOOL_CUBLAS_PATH": cublas}
    done = subprocess.run([program, cublas], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
