"""PyTorch's own libc10_cuda.so over doubles of the driver and the CUDA runtime, and what calls allocators by it."""

import fcntl
import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import gpupool
import pytest
from abi import SOURCES, build_driver
from pytorch.fetch import CannotFetch, Fetched, fetch
from running import run_program

REPOSITORY = Path(__file__).parents[2]
# What is fetched, and what is compiled with it: only once for the same sources.
FETCHED = REPOSITORY / "build" / "pytorch"
COMPILED = REPOSITORY / "build" / "pytorch-tests"
ALLOCATOR = REPOSITORY / "python" / "gpupool" / "_torch"
HEADER = Path(gpupool.get_include()) / "gpupool.h"
FLAGS = ("-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")


@dataclass
class TorchMachine:
    """A machine with two devices, a driver, the CUDA runtime, and a version of PyTorch."""

    version: str

    def build(self) -> None:
        """Fetch and compile what is not there yet; skip the test where that cannot be."""
        COMPILED.mkdir(parents=True, exist_ok=True)
        # Tests of other processes may want the same.
        with open(COMPILED / f"{self.version}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._build()

    def _build(self) -> None:
        try:
            self._fetched: Fetched = fetch(self.version, FETCHED)
        except CannotFetch as error:
            pytest.skip(str(error))
        # Sources and headers of which any may have changed.
        parts = [SOURCES / name for name in ("libcuda.c", "libcudart.c", "libtorch_cpu.cpp", "torch_calls.cpp")]
        parts += [*sorted(SOURCES.glob("*.h")), *sorted(ALLOCATOR.glob("*.h")), *self._units(), HEADER, Path(__file__)]
        digest = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()[:16]
        self._folder = COMPILED / f"{self.version}-{digest}"
        if not (self._folder / "done").exists():
            self._compile()

    def run(self, function: str, program: str, **variables: str) -> str:
        """Run one function of a program; return what it printed."""
        return run_program(
            program,
            self._folder / "calls.so",
            self._folder / "allocator.so",
            function,
            GPUPOOL_RUNTIME="cuda",
            DOUBLE_DRIVER="libcuda.so.1",
            LD_LIBRARY_PATH=f"{self._folder}:{self._fetched.torch / 'lib'}",
            FAKE_DEVICES="2",
            FAKE_VMM="1",
            FAKE_HOST_VMM="1",
            FETCHED_TORCH=str(self._fetched.torch),
            CUDA_HOME=str(self._fetched.cuda.parent),
            **variables,
        )

    def _compile(self) -> None:
        for old in COMPILED.glob(f"{self.version}-*"):
            shutil.rmtree(old)
        build_driver(self._folder)
        runtime = "libcudart.so.13"
        (self._folder / "symbols").write_text(f"{runtime} {{ global: *; }};")
        self._run(
            "cc",
            SOURCES / "libcudart.c",
            "-Wno-unused-parameter",
            f"-Wl,-soname,{runtime},--version-script={self._folder / 'symbols'}",
            f"-L{self._folder}",
            "-l:libcuda.so.1",
            out=runtime,
        )
        torch = ("-std=c++20", "-fvisibility=hidden", "-isystem", self._fetched.torch / "include", f"-I{HEADER.parent}")
        libraries = (f"-L{self._fetched.torch / 'lib'}", "-l:libc10_cuda.so", "-l:libc10.so")
        cpu = "libtorch_cpu.so"
        runtime_of_cpu = (f"-L{self._folder}", f"-l:{runtime}", f"-Wl,-soname,{cpu}")
        self._run("c++", "-O0", *torch, SOURCES / "libtorch_cpu.cpp", *libraries, *runtime_of_cpu, out=cpu)
        of_cpu = (f"-L{self._folder}", f"-l:{cpu}")
        self._run("c++", "-O0", *torch, SOURCES / "torch_calls.cpp", *libraries, *of_cpu, out="calls.so")
        self._run("c++", "-O2", *torch, *self._units(), *libraries, out="allocator.so")
        (self._folder / "done").touch()

    def _units(self) -> list[Path]:
        return sorted(ALLOCATOR.glob("*.cpp"))

    def _run(self, language: str, *arguments: object, out: str) -> None:
        compiler = shutil.which(language)
        if compiler is None:
            pytest.skip(f"needs a compiler, {language}")
        command = [compiler, *FLAGS, "-isystem", self._fetched.cuda, *arguments, "-o", self._folder / out]
        subprocess.run(list(map(str, command)), check=True)
