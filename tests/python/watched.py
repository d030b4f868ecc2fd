"""Programs that are started with `libgpupool_watch.so`, and the doubles that they run on.

`Watched` is a folder in which they are compiled; `Watched.start` runs one with the library preloaded.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import gpupool
import pytest
from abi import compile_double
from processes import succeeded

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "tests" / "watch"
STRICT = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-unused-function")


def watch_library() -> Path:
    """Return the library, which `make .venv/library` builds, or skip the test."""
    file = Path(gpupool.__file__).parent / "lib" / "libgpupool_watch.so"
    if not file.exists():
        pytest.skip("needs the library that counts: make .venv/library")
    return file


def known_calls() -> list[tuple[str, str, str]]:
    """Return the symbol, the name and the version of each function that the library knows."""
    text = (ROOT / "crates" / "watch" / "src" / "calls.rs").read_text()
    found = re.findall(r'^    (cu\w+), c"(\w+)", (\d+), ', text, re.MULTILINE)
    assert len(found) > 30, "the list in calls.rs is written in another way"
    return found


def cases_of(source: str) -> list[str]:
    """Return the names in a program's table of cases."""
    found = re.findall(r"CASE\((\w+)\)", (SOURCES / source).read_text())
    assert found, f"{source} has no cases"
    return found


def as_macro(calls: list[tuple[str, str, str]]) -> str:
    """Return the option that gives a program these functions."""
    kinds = {"cuGetProcAddress": "FIND"}
    return "-DCALLS=" + " ".join(
        f'{kinds.get(name, "CALL")}({symbol},"{name}",{since})' for symbol, name, since in calls
    )


@dataclass
class Watched:
    """A folder with programs, a driver and other libraries, which are compiled there."""

    folder: Path
    library: Path = field(default_factory=watch_library)

    def build(self, source: str, name: str | None = None, *flags: str, needs: tuple[str, ...] = ()) -> Path:
        """Compile a program of tests/watch or, where the name says so, a library, linked with others of the folder."""
        path = (SOURCES / source).resolve()
        file = self.folder / (name or path.stem)
        compiler = {".c": "cc", ".cpp": "c++", ".rs": "rustc"}[path.suffix]
        if shutil.which(compiler) is None:
            pytest.skip(f"needs a compiler, {compiler}")
        if compiler == "rustc":
            command = [compiler, "--edition=2024", *flags, "-o", str(file), str(path)]
        else:
            # The last is linked with what is in no file's needs: dlopen finds it all the same, by LD_LIBRARY_PATH.
            command = [compiler, "-g", "-pthread", *(STRICT if path.parent == SOURCES else ("-w",)), *flags]
            command += ["-shared", "-fPIC", f"-Wl,-soname,{file.name}"] if ".so" in file.name else []
            command += [str(path), "-o", str(file), f"-L{self.folder}", *(f"-l:{need}" for need in needs), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return file

    def build_driver(self) -> None:
        """Compile the double of the driver, with what only programs that are watched call."""
        compile_double("libcuda.c", self.folder / "libcuda.so.1", "-DFOR_WATCH")

    def start(
        self,
        program: str | Path,
        *arguments: object,
        before: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        timeout: float = 60,
        stderr: int = subprocess.PIPE,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program with the library preloaded, and others of the folder before and after it, until it ends."""
        preloaded = [*(self.folder / name for name in before), self.library, *(self.folder / name for name in after)]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GPUPOOL_", "LD_"))},
            "LD_LIBRARY_PATH": str(self.folder),
            "LD_PRELOAD": ":".join(map(str, preloaded)),
            **variables,
        }
        command = [str(self.folder / program), *map(str, arguments)]
        streams = {"stdout": subprocess.PIPE, "stderr": stderr}
        return subprocess.run(
            command, env=environment, cwd=self.folder, **streams, text=True, timeout=timeout, check=False
        )

    def run(self, program: str | Path, *arguments: object, **options: object) -> str:
        """Run a program so; it must succeed and complain of nothing. Return what it printed."""
        __tracebackhide__ = True
        return succeeded(self.start(program, *arguments, **options))
