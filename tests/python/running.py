"""Programs of this folder, run in new interpreters: with all that is installed here, or with gpupool alone."""

import ast
import subprocess
from pathlib import Path

import gpupool
from processes import start_python, succeeded

PROGRAMS = Path(__file__).parent / "programs"
# What programs share.
SHARED = PROGRAMS / "shared"
# What could lead the loader to libraries of this machine.
PLACES = ("VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH")


def functions_of(name: str, *left_out: str) -> list[str]:
    """Return what a program is run for: its functions that take no argument and that it does not call itself."""
    module = ast.parse((PROGRAMS / name).read_text())
    called = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and not ast.unparse(node.args)]
    names = [node.name for node in functions if node.name not in called]
    assert set(left_out) <= set(names), f"{name} has no {set(left_out) - set(names)}"
    return [function for function in names if function not in left_out]


# For a program that is to find no GPU, and does not look at the warning.
NO_GPU = {"PYTHONWARNINGS": "ignore:no GPU was found:RuntimeWarning"}


def start_program(name: str, *arguments: object, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Run a program, with variables added to its environment; None removes one."""
    return _start(PROGRAMS / name, *arguments, **variables)


def run_program(name: str, *arguments: object, **variables: str | None) -> str:
    """Run a program, which must succeed and complain of nothing; return what it printed."""
    return succeeded(start_program(name, *arguments, **variables))


def start_bare_program(name: str, *arguments: object, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Run a program where no package is installed other than gpupool and those of PYTHONPATH."""
    return _start_bare(PROGRAMS / name, *arguments, **variables)


def run_bare_program(name: str, *arguments: object, **variables: str | None) -> str:
    """Run a program as `start_bare_program` does; it must succeed and complain of nothing. Return what it printed."""
    return succeeded(start_bare_program(name, *arguments, **variables))


def start_command(*arguments: object, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Run gpupool's command line."""
    return _start("-m", "gpupool", *arguments, **variables)


def start_bare_command(*arguments: object, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Run gpupool's command line where no package is installed other than gpupool and those of PYTHONPATH."""
    return _start_bare("-m", "gpupool", *arguments, **variables)


def run_example(name: str, *arguments: object, **variables: str | None) -> list[str]:
    """Run an example, which must succeed and complain of nothing; return the lines that it printed."""
    example = PROGRAMS.parents[2] / "examples" / f"{name}.py"
    variables = {"GPUPOOL_RUNTIME": "host", **variables}
    return succeeded(_start(example, *arguments, timeout=110, **variables)).splitlines()


def _start(*arguments: object, timeout: float = 60, **variables: str | None) -> subprocess.CompletedProcess[str]:
    # Whatever PYTHONPATH says.
    folders = [SHARED, Path(gpupool.__file__).parents[1]]
    return start_python(*arguments, folders=folders, timeout=timeout, **variables)


def _start_bare(*arguments: object, **variables: str | None) -> subprocess.CompletedProcess[str]:
    return _start("-S", *arguments, **{**dict.fromkeys(PLACES), **variables})
