"""PyTorch's own tests, with gpupool and without, in a few processes at once.

    python tests/gpu/pytorch_own.py [--processes 4] [--seconds 300] TEST_FILE [-k EXPRESSION]

TEST_FILE is one of PyTorch's sources, such as test/test_cuda.py or test/inductor/test_cudagraph_trees.py, of about the
version that is installed. All tests run with gpupool, until the time is over; those that fail then run without it. The
last lines name those that fail with gpupool alone. Each process imports PyTorch once, which on a new machine takes a
minute, and takes every n-th test.
"""

import argparse
import ast
import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

# What the parent process tells the plugin that this file also is.
WAY, SHARD, ONLY, OUTCOMES = "OWN_TESTS_WAY", "OWN_TESTS_SHARD", "OWN_TESTS_ONLY", "OWN_TESTS_OUTCOMES"


class StandIn:
    """What a later PyTorch has of a name: false, and a decorator that changes nothing."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Return the function that it decorates, or itself."""
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) and not named else self

    def __bool__(self) -> bool:
        """Return False."""
        return False

    def __getattr__(self, name: str) -> Any:
        """Return another one."""
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()


def stand_in(path: Path) -> None:
    """Give PyTorch's modules the names that a file imports and they have not."""
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("torch"):
            continue
        with contextlib.suppress(ImportError):
            module = importlib.import_module(str(node.module))
            for name in [alias.name for alias in node.names if not hasattr(module, alias.name)]:
                try:
                    importlib.import_module(f"{node.module}.{name}")
                except ImportError:
                    setattr(module, name, StandIn())


def pytest_configure(config: Any) -> None:
    """Enable gpupool before the first test."""
    for path in config.args:
        stand_in(Path(path))
    if os.environ[WAY] == "gpupool":
        import gpupool

        gpupool.torch.enable()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep this process's tests."""
    if only := os.environ.get(ONLY):
        names = set(Path(only).read_text().splitlines())
        items[:] = [item for item in items if item.nodeid in names]
    index, count = map(int, os.environ[SHARD].split("/"))
    items[:] = items[index::count]


def pytest_runtest_logreport(report: Any) -> None:
    """Write an outcome down at once: the process may be ended."""
    if report.when == "call" or report.outcome != "passed":
        with open(os.environ[OUTCOMES], "a") as file:
            file.write(f"{report.outcome} {report.nodeid}\n")


def run(way: str, arguments: argparse.Namespace, folder: Path, only: list[str] | None = None) -> dict[str, str]:
    """Return the outcomes of a way by test."""
    environment = {**os.environ, WAY: way, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / f"compiled-{way}")
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    if only is not None:
        (folder / "only").write_text("\n".join(only))
        environment[ONLY] = str(folder / "only")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(arguments.file.parent), "-q"]
    command += ["-p", "pytorch_own", "-p", "no:cacheprovider", "-p", "no:xdist", str(arguments.file)]
    command += ["-k", arguments.k] if arguments.k and only is None else []
    processes = []
    for index in range(arguments.processes):
        log = (folder / f"{way}-{index}.log").open("w")
        shard = {SHARD: f"{index}/{arguments.processes}", OUTCOMES: str(folder / f"{way}-{index}.outcomes")}
        started = subprocess.Popen(command, env={**environment, **shard}, stdout=log, stderr=subprocess.STDOUT)
        processes.append(started)
    end = time.monotonic() + arguments.seconds
    for process in processes:
        try:
            process.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    lines = [line for path in folder.glob(f"{way}-*.outcomes") for line in path.read_text().splitlines()]
    # A test that fails in its end has passed before.
    outcomes: dict[str, str] = {}
    for outcome, name in sorted((line.split(" ", 1) for line in lines), key=lambda pair: pair[0] == "failed"):
        outcomes[name] = outcome
    return outcomes


def main() -> None:
    """Run all, and print what was found."""
    parser = argparse.ArgumentParser(description="Run PyTorch's own tests with gpupool and without.")
    parser.add_argument("file", type=Path)
    parser.add_argument("-k", help="pytest's expression of the tests to run")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=300, help="of each of the two ways")
    arguments = parser.parse_args()
    arguments.file = arguments.file.resolve()
    folder = Path(tempfile.mkdtemp())
    found = run("gpupool", arguments, folder)
    print(f"{arguments.file.name} with gpupool: {dict(Counter(found.values()))}; logs in {folder}", flush=True)
    if not found:
        sys.exit((folder / "gpupool-0.log").read_text()[-3000:])
    failed = sorted(name for name, outcome in found.items() if outcome == "failed")
    without = run("PyTorch", arguments, folder, failed) if failed else {}
    both = [name for name in failed if without.get(name) == "failed"]
    print(f"{len(both)} fail without, too")
    for name in sorted(set(failed) - set(both)):
        print(f"fails with gpupool; without it {without.get(name, 'not run')}: {name}")


if __name__ == "__main__":
    main()
