"""Programs that tests start in processes of their own.

They are files, in a folder `programs` beside the tests. What they find broken they name themselves, by the assertion
that fails, so a test asks of most of them only that they end well.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

# Where programs find what they share with tests.
HERE = Path(__file__).parent


def functions_of(program: Path, *left_out: str) -> list[str]:
    """Return what a program is run for: its functions that take no argument and that it does not call itself."""
    module = ast.parse(program.read_text())
    called = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and not ast.unparse(node.args)]
    names = [node.name for node in functions if node.name not in called]
    assert set(left_out) <= set(names), f"{program} has no {set(left_out) - set(names)}"
    return [function for function in names if function not in left_out]


def start_python(
    *arguments: object, folders: Iterable[Path] = (), timeout: float = 60, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter until it ends, with variables added to its environment; None removes one.

    It can import what is where PYTHONPATH says, then what is in the folders.
    """
    command = [sys.executable, *map(str, arguments)]
    environment = environment_with(folders, **variables)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)


def environment_with(folders: Iterable[Path], **variables: str | None) -> dict[str, str]:
    """Return this process's environment with variables added, for one that can import what is in the folders too."""
    changed = {**os.environ, **variables}
    places = [changed.get("PYTHONPATH"), *map(str, folders), str(HERE)]
    changed["PYTHONPATH"] = os.pathsep.join(place for place in places if place)
    return {name: value for name, value in changed.items() if value is not None}


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a process printed; it must have ended as it should and complained of nothing."""
    __tracebackhide__ = True
    assert (done.returncode, done.stderr) == (0, ""), f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout
