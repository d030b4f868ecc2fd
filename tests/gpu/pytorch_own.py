"""PyTorch's own tests, with gpupool and without, in a few processes at once.

    python tests/gpu/pytorch_own.py [--processes 4] [--seconds 300] TEST_FILE [-k EXPRESSION]

TEST_FILE is one of PyTorch's sources, such as test/test_cuda.py or test/inductor/test_cudagraph_trees.py, of about the
version that is installed. All tests run with gpupool, until the time is over. Each process imports PyTorch once, which
on a new machine takes a minute, and takes every n-th test. Those that fail, or end their process, may do so for what
tests before them have left, so each then runs in a process of its own, with gpupool and without. The last lines name
those whose outcomes then differ.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# What the parent process tells the plugin that this file also is.
WAY, SHARD, OUTCOMES = "OWN_TESTS_WAY", "OWN_TESTS_SHARD", "OWN_TESTS_OUTCOMES"


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
        stand_in(Path(path.split("::")[0]))
    if os.environ[WAY] == "gpupool":
        import gpupool

        gpupool.torch.enable()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep those of this process's tests that have not begun in one before it."""
    index, count = map(int, os.environ[SHARD].split("/"))
    written = Path(os.environ[OUTCOMES])
    begun = outcomes(written.parent, written.stem)
    items[:] = [item for item in items[index::count] if item.nodeid not in begun]


def write_down(outcome: str, test: str) -> None:
    """Write an outcome down at once: the process may end."""
    with open(os.environ[OUTCOMES], "a") as file:
        file.write(f"{outcome} {test}\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Write down that a test begins, which its process may not survive."""
    write_down("ended", nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Write down how a test ended, or a part of it failed."""
    if report.when == "call" or report.outcome != "passed":
        write_down(report.outcome, report.nodeid)


def command(arguments: argparse.Namespace) -> list[str]:
    """Return the command that runs tests, but for which."""
    options = ["-c", os.devnull, "--rootdir", str(arguments.file.parent), "-q"]
    options += ["-p", "pytorch_own", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return [sys.executable, "-m", "pytest", *options]


def environment(way: str, folder: Path, name: str, shard: str = "0/1") -> dict[str, str]:
    """Return the environment of a process, whose files have this name."""
    own = {
        WAY: way,
        SHARD: shard,
        OUTCOMES: str(folder / f"{name}.outcomes"),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / f"compiled-{way}"),
        "TORCH_EXTENSIONS_DIR": str(folder / f"built-{name}"),
    }
    return {**os.environ, **own}


def execute(arguments: list[str], variables: dict[str, str], log: Path, end: float) -> int:
    """Return the exit status of a process, which is ended when the time is over; less than 0 if a signal ended it."""
    with log.open("a") as file:
        process = subprocess.Popen(arguments, env=variables, stdout=file, stderr=subprocess.STDOUT)
        try:
            return process.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return 0


def outcomes(folder: Path, names: str) -> dict[str, str]:
    """Return the outcomes by test that processes with such names have written."""
    lines = [line for path in folder.glob(f"{names}.outcomes") for line in path.read_text().splitlines()]
    # The last word on a test is the worst, but for that it began.
    order = {"ended": 0, "failed": 2}
    return dict(sorted((line.split(" ", 1)[::-1] for line in lines), key=lambda pair: order.get(pair[1], 1)))


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Return the outcomes with gpupool by test."""
    end = time.monotonic() + arguments.seconds
    wanted = [*command(arguments), str(arguments.file), *(["-k", arguments.k] if arguments.k else [])]

    def run_shard(index: int) -> None:
        name = f"all-{index}"
        variables = environment("gpupool", folder, name, f"{index}/{arguments.processes}")
        begun = None
        # Where a test has ended the process, another goes on with those after it.
        while execute(wanted, variables, folder / f"{name}.log", end) < 0 and begun != outcomes(folder, name):
            begun = outcomes(folder, name)

    with ThreadPoolExecutor(arguments.processes) as executor:
        list(executor.map(run_shard, range(arguments.processes)))
    return outcomes(folder, "all-*")


def run_alone(arguments: argparse.Namespace, folder: Path, way: str, test: str) -> str:
    """Return the outcome of a test in a process of its own."""
    name = f"{way}-{test.rsplit('::', 1)[-1]}"
    wanted = [*command(arguments), str(arguments.file.parent / test)]
    execute(wanted, environment(way, folder, name), folder / f"{name}.log", time.monotonic() + arguments.seconds)
    return outcomes(folder, name).get(test, "ended")


def main() -> None:
    """Run all, and print what was found."""
    parser = argparse.ArgumentParser(description="Run PyTorch's own tests with gpupool and without.")
    parser.add_argument("file", type=Path)
    parser.add_argument("-k", help="pytest's expression of the tests to run")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=300, help="of all tests, and then of each that runs alone")
    arguments = parser.parse_args()
    arguments.file = arguments.file.resolve()
    folder = Path(tempfile.mkdtemp())
    found = run(arguments, folder)
    print(f"{arguments.file.name} with gpupool: {dict(Counter(found.values()))}; logs in {folder}", flush=True)
    if not found:
        sys.exit((folder / "all-0.log").read_text()[-3000:])
    failed = sorted(name for name, outcome in found.items() if outcome in ("failed", "ended"))
    with ThreadPoolExecutor(arguments.processes) as executor:
        alone = {
            way: executor.map(lambda test, way=way: run_alone(arguments, folder, way, test), failed)
            for way in ("gpupool", "PyTorch")
        }
    rows = zip(failed, alone["gpupool"], alone["PyTorch"], strict=True)
    differing = [row for row in rows if row[1] != row[2]]
    print(f"{len(failed) - len(differing)} of those that fail do the same with and without when alone")
    for test, own, without in differing:
        print(f"{test}: with gpupool {own}, without {without}")


if __name__ == "__main__":
    main()
