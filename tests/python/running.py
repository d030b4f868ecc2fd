"""Programs of this folder, run in new interpreters: with all that is installed here, or with gpupool alone."""

import ast
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gpupool
import processes
from processes import start_python, succeeded
from programs.shared.fork_server import is_asked_for_functions

PROGRAMS = Path(__file__).parent / "programs"
# What programs share.
SHARED = PROGRAMS / "shared"
# What could lead the loader to libraries of this machine.
PLACES = ("VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH")


def functions_of(name: str, *left_out: str) -> list[str]:
    """Return what a program is run for, as `processes.functions_of` does."""
    return processes.functions_of(PROGRAMS / name, *left_out)


def cases_of(name: str) -> list[str]:
    """Return the names in a program's table of cases."""
    module = ast.parse((PROGRAMS / name).read_text())
    (table,) = (
        node.value for node in module.body if isinstance(node, ast.Assign) and ast.unparse(node).startswith("CASES ")
    )
    return [ast.literal_eval(key) for key in table.keys]


# For a program that is to find no GPU, and does not look at the warning.
NO_GPU = {"PYTHONWARNINGS": "ignore:no GPU was found:RuntimeWarning"}


@dataclass(frozen=True)
class Runner:
    """Runs programs by a function that starts Python with a program, or with `-m` and a module's name.

    Variables are added to the environment, and None removes one. Where it is bare, no package is installed other than
    gpupool and those of PYTHONPATH. What is run must succeed and complain of nothing; what it printed is returned.
    """

    start: Callable[..., subprocess.CompletedProcess[str]]

    def start_program(self, name: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        """Start a program, for the function that the first argument names if there is one, and wait for its end."""
        return self.start(PROGRAMS / name, *arguments, **options)

    def run_program(self, name: str, *arguments: object, **options: object) -> str:
        """Run a program."""
        return succeeded(self.start_program(name, *arguments, **options))

    def start_bare_program(self, name: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        """Start a program where it is bare."""
        return self._start_bare(PROGRAMS / name, *arguments, **options)

    def run_bare_program(self, name: str, *arguments: object, **options: object) -> str:
        """Run a program where it is bare."""
        return succeeded(self.start_bare_program(name, *arguments, **options))

    def start_command(self, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        """Start gpupool's command line."""
        return self.start("-m", "gpupool", *arguments, **options)

    def start_bare_command(self, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        """Start gpupool's command line where it is bare."""
        return self._start_bare("-m", "gpupool", *arguments, **options)

    def _start_bare(self, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        return self.start(*arguments, flags=("-S",), **{**dict.fromkeys(PLACES), **options})


def run_example(name: str, *arguments: object, **variables: str | None) -> list[str]:
    """Run an example, which must succeed and complain of nothing; return the lines that it printed."""
    example = PROGRAMS.parents[2] / "examples" / f"{name}.py"
    variables = {"GPUPOOL_RUNTIME": "host", **variables}
    return succeeded(_start(example, *arguments, timeout=110, **variables)).splitlines()


def _start(
    *arguments: object, flags: tuple[str, ...] = (), timeout: float = 60, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    program, *asked = arguments
    if asked and isinstance(program, Path) and is_asked_for_functions(program):
        arguments = (SHARED / "case.py", *arguments)
    # Whatever PYTHONPATH says.
    folders = [SHARED, Path(gpupool.__file__).parents[1]]
    return start_python(*flags, *arguments, folders=folders, timeout=timeout, **variables)


_runner = Runner(_start)
start_program, run_program = _runner.start_program, _runner.run_program
start_bare_program, run_bare_program = _runner.start_bare_program, _runner.run_bare_program
start_command, start_bare_command = _runner.start_command, _runner.start_bare_command
