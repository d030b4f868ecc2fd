"""Programs in C and C++ that tests compile against gpupool's headers and run on simulated devices."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import gpupool
import pytest

ROOT = Path(__file__).parents[2]
INCLUDE = Path(gpupool.get_include())
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def find_library():
    """Return the C library, which `make .venv/library` builds, or skip the test."""
    try:
        return Path(gpupool.get_library())
    except gpupool.LibraryNotFound:
        pytest.skip("needs the C library: make .venv/library")


def folder_of(package, *parts):
    """Return a folder of an installed package, or skip the test where it is missing."""
    found = importlib.util.find_spec(package)
    places = [Path(place, *parts) for place in (found.submodule_search_locations or [])] if found else []
    for place in places:
        if place.is_dir():
            return place
    pytest.skip(f"needs {'/'.join((package, *parts))}, of a wheel")


def build(compiler, source, out, *options):
    """Compile a program, or skip the test where there is no compiler; return its path."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs a compiler, {compiler}")
    done = subprocess.run(
        [compiler, str(source), "-o", str(out), f"-I{INCLUDE}", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return out


@contextmanager
def allocators(kind, source):
    """Return what makes allocators of a kind for pools, all of which end with the block."""
    made = []

    def make(pool):
        made.append(kind(source, pool))
        return made[-1]

    yield make
    for allocator in made:
        allocator.end()


def link(library):
    """Return the options that link a program with the C library."""
    return [f"-L{library.parent}", f"-l:{library.name}", f"-Wl,-rpath,{library.parent}", "-pthread"]


def run(program, **variables):
    """Run a program on two simulated devices; it must succeed. Return what it printed."""
    environment = {**os.environ, "GPUPOOL_RUNTIME": "host", "GPUPOOL_HOST_DEVICES": "2", **variables}
    done = subprocess.run([program], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def sanitizer():
    """Return the option for AddressSanitizer, which finds leaks too, if the compiler has it.

    It names functions without debug information too, which takes the compiler long.
    """
    return ["-fsanitize=address"] if can_sanitize("-fsanitize=address") else []


@cache
def can_sanitize(*options):
    """Return whether the compiler has a sanitizer, and what it makes so runs."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/sanitized"
        command = ["c++", *options, "-x", "c++", "-", "-o", program]
        compiles = (
            shutil.which("c++")
            and not subprocess.run(command, input=b"int main() {}", capture_output=True, check=False).returncode
        )
        # It also has to run: it does not under every emulator or limit of memory.
        return bool(compiles) and subprocess.run([program], capture_output=True, check=False).returncode == 0


def headers_of(framework, variable, *wheels):
    """Return the options for a framework's headers: its own where the variable names their folders, or their double's.

    Args:
        framework: The folder of the double.
        variable: An environment variable: folders, separated by colons.
        wheels: Packages and folders of headers that its own need besides.
    """
    if variable not in os.environ:
        return [f"-I{ROOT / 'tests' / 'doubles' / framework}"]
    folders = [*os.environ[variable].split(os.pathsep), *(folder_of(*wheel) for wheel in wheels)]
    return [option for folder in folders for option in ("-isystem", str(folder))]


def load(library, folder, source, *options):
    """Compile a program as a library that uses the gpupool of this Python process, and load it."""
    # Without a path to the library: the module that is in memory goes by its name.
    linked = ["-shared", "-fPIC", f"-L{library.parent}", f"-l:{library.name}"]
    return ctypes.CDLL(str(build("c++", source, folder / "library.so", "-std=c++17", *STRICT, *options, *linked)))
