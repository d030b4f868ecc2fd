"""PyTorch's own tests, with gpupool and without, in many processes at once.

    python tests/gpu/pytorch_own.py [--processes 4] [--seconds 300] [--output FOLDER] TEST_FILE... [-k EXPRESSION]

TEST_FILE is one of PyTorch's sources, such as test/test_cuda.py or test/inductor/test_cudagraph_trees.py, of about the
version that is installed. Words may follow it, with commas between: ``k=EXPRESSION`` chooses tests as pytest does, and
``most=N`` the first N of them; ``children`` has the processes that the tests start enabled too, ``pinned`` has pinned
memory come from gpupool too, and ``alone`` gives each test a process of its own: ``test_dataloader.py,k=pin,pinned``.

It needs pytest-xdist, whose processes import PyTorch once and take a test when they are done with another, and
pytest-timeout. Where a test ends its process, or hangs, another one goes on with those after it. In turn, until the
time is over:

1. All tests run with gpupool, but for those that PyTorch marks to be alone on the GPU.
2. Those that then failed or were skipped run without; with ``--both`` all do.
3. Those whose outcomes differ may fail for what tests before them have left: each runs in a process of its own, with
   gpupool and without.
4. Those that PyTorch marks to be alone on the GPU run so, with gpupool, and those that fail without.
5. Those whose outcomes still differ run alone on the machine, with gpupool and without.

FOLDER gets outcomes.tsv, a line for each test; summary.txt, which is also printed; and failures.txt, with the
tracebacks of those whose outcomes differ.
"""

import argparse
import ast
import contextlib
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# What the parent process tells the plugin that this file also is, and the children of the tests.
TOLD = "OWN_TESTS"

# What later versions call the same.
LATER = {"HAS_CUDA": "HAS_CUDA_AND_TRITON"}

# A process that keeps more memory than this after a test gives it back, for others run beside it.
MOST_KEPT = 1 << 30


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
                    setattr(module, name, getattr(module, LATER.get(name, ""), StandIn()))


# ---- In the processes that run tests.


def told() -> dict[str, Any]:
    """Return what the parent process has told."""
    content: dict[str, Any] = json.loads(os.environ[TOLD])
    return content


def has_workers(config: pytest.Config) -> bool:
    """Return whether this process runs no tests itself, and has others that do."""
    return bool(getattr(config.option, "numprocesses", None)) and not hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Enable gpupool before the first test."""
    if has_workers(config):
        return
    stand_in(Path(told()["file"]))
    if told()["way"] == "gpupool":
        import gpupool

        gpupool.torch.enable(pinned=told()["pinned"])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that are asked for, and tell which there are."""
    own = told()
    if own["most"]:
        del items[own["most"] :]
    content = {item.nodeid: item.get_closest_marker("serial") is not None for item in items}
    new = Path(f"{own['collected']}.{os.getpid()}")
    new.write_text(json.dumps(content))
    new.rename(own["collected"])
    wanted = set(json.loads(Path(own["wanted"]).read_text())) if own["wanted"] else None
    items[:] = [item for item in items if (not content[item.nodeid] if wanted is None else item.nodeid in wanted)]


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Give back what memory this process keeps, and end it where the GPU is lost: no later test could pass."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
        if torch.cuda.memory_reserved() > MOST_KEPT:
            gc.collect()
            torch.cuda.empty_cache()
    except Exception:
        os._exit(70)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down at once how a test ended, or a part of it failed: where xdist collects what its processes tell."""
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.outcome == "passed"):
        return
    outcome = "failed as expected" if report.outcome == "skipped" and hasattr(report, "wasxfail") else report.outcome
    content = {"test": report.nodeid, "outcome": outcome, "seconds": round(report.duration, 2)}
    if report.outcome == "failed":
        crash = getattr(report.longrepr, "reprcrash", None)
        message = str(report.longrepr if crash is None else crash.message)[:400]
        content.update(message=message, text=report.longreprtext[-8000:])
    with open(told()["outcomes"], "a") as file:
        file.write(json.dumps(content) + "\n")


def begin_child() -> None:
    """Begin a Python that a test starts, and the test's process: called by the ``sitecustomize`` that this writes."""
    own = told()

    class Finder:
        """A finder that finds nothing, but sees the test's file before it is imported."""

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            """Give PyTorch the names that the file will import."""
            if name.rsplit(".", 1)[-1] == Path(own["file"]).stem:
                sys.meta_path.remove(self)
                stand_in(Path(own["file"]))

    sys.meta_path.insert(0, Finder())
    if os.environ.get("GPUPOOL_ENABLE"):
        import _gpupool_enable

        _gpupool_enable.start()
    # The one that this one hides.
    others = [path for path in sys.path if Path(path).resolve() != Path(own["site"]).resolve()]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# ---- In the parent process.


@dataclass
class Row:
    """What is known of a test."""

    own: dict[str, Any] = field(default_factory=dict)
    without: dict[str, Any] = field(default_factory=dict)
    how: str = "in company"
    # What was found in company, where it is not the last word.
    before: str = ""

    def outcomes(self) -> tuple[str, str]:
        """Return its outcomes with gpupool and without."""
        return self.own.get("outcome", "not run"), self.without.get("outcome", "not run")

    def verdict(self) -> str:
        """Return what the outcomes say of gpupool."""
        own, without = self.outcomes()
        if own == "failed":
            both = {"failed": "fails with both", "not run": "not compared"}
            return both.get(without, "fails with gpupool alone")
        if own == "not run":
            return own
        if without == "failed":
            return "fails without gpupool alone"
        if (own, without) == ("skipped", "passed"):
            return "skipped with gpupool alone"
        return f"{own} {self.how}" if self.before else own

    def differs(self) -> bool:
        """Return whether gpupool seems to be the reason of what happens."""
        return self.verdict() in ("fails with gpupool alone", "skipped with gpupool alone", "not compared")

    def is_same(self) -> str:
        """Return whether it fails with the same words both ways, but for numbers."""
        if self.verdict() != "fails with both":
            return ""
        words = [re.sub(r"0x[0-9a-f]+|\d+", "#", str(each.get("message", ""))) for each in (self.own, self.without)]
        return "same words" if words[0] == words[1] else "other words"

    def is_to_compare(self) -> bool:
        """Return whether it runs without gpupool too."""
        return self.outcomes() in (("failed", "not run"), ("skipped", "not run"))

    def is_told(self) -> bool:
        """Return whether the summary names it."""
        return self.differs() or bool(self.before) or self.verdict() == "fails without gpupool alone"


class File:
    """A file of tests, how they run, and what is known of them."""

    def __init__(self, text: str, expression: str | None) -> None:
        path, *words = text.split(",")
        named = dict(word.split("=", 1) for word in words if "=" in word)
        self.plain = {word for word in words if "=" not in word}
        if wrong := (self.plain - {"children", "pinned", "alone"}) | (named.keys() - {"k", "most"}):
            raise SystemExit(f"no such words: {', '.join(sorted(wrong))}")
        self.path = Path(path).resolve()
        if not self.path.is_file():
            raise SystemExit(f"there is no file {self.path}")
        self.expression, self.most = named.get("k", expression), int(named.get("most", 0))
        kinds = ", ".join(f"{word} too" for word in ("children", "pinned") if word in self.plain)
        self.name = f"{self.path.name} ({kinds})" if kinds else self.path.name
        self.rows: dict[str, Row] = {}
        self.serial: list[str] = []
        self.log = ""


class Run:
    """All that a command runs."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.files = [File(text, arguments.k) for text in arguments.files]
        self.folder = Path(tempfile.mkdtemp(prefix="pytorch-own-"))
        self.began = time.monotonic()
        self.site = self.folder / "site"
        self.site.mkdir()
        (self.site / "sitecustomize.py").write_text("import pytorch_own\n\npytorch_own.begin_child()\n")

    def left(self) -> float:
        """Return how many seconds there are still."""
        return self.arguments.seconds - (time.monotonic() - self.began)

    def pytest(self, file: File, way: str, wanted: list[str] | None, processes: int) -> dict[str, dict[str, Any]]:
        """Run tests of a file one way until the time is over, and return the outcomes: of each the worst."""
        if self.left() < 1:
            return {}
        folder = Path(tempfile.mkdtemp(prefix=f"{file.path.stem}-{way}-", dir=self.folder))
        content = {name: str(folder / name) for name in ("outcomes", "collected")}
        content |= {"file": str(file.path), "way": way, "pinned": "pinned" in file.plain, "most": file.most}
        content |= {"site": str(self.site), "wanted": "" if wanted is None else str(folder / "wanted")}
        if wanted is not None:
            (folder / "wanted").write_text(json.dumps(wanted))
        paths = [str(self.site)] if "children" in file.plain else []
        paths += [str(Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            **os.environ,
            TOLD: json.dumps(content),
            "PYTHONPATH": os.pathsep.join(paths),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / f"compiled-{way}"),
            "TORCH_EXTENSIONS_DIR": str(folder / "built"),
        }
        variables.pop("GPUPOOL_ENABLE", None)
        if way == "gpupool" and "children" in file.plain:
            variables["GPUPOOL_ENABLE"] = "torch"
        options = ["-c", os.devnull, "--rootdir", str(file.path.parent), "-q", "-p", "pytorch_own"]
        options += ["-p", "no:cacheprovider", f"--timeout={self.arguments.patience}", "--timeout-method=thread"]
        options += ["-n", str(processes), "--max-worker-restart=1000"] if processes > 1 else []
        options += ["-k", file.expression] if file.expression else []
        command = [sys.executable, "-m", "pytest", *options, str(file.path)]
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen(
                command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            ) as process,
        ):
            try:
                process.wait(self.left())
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        file.log = (folder / "log").read_text(errors="replace")[-8000:]
        if not file.rows and (folder / "collected").exists():
            collected = json.loads((folder / "collected").read_text())
            file.serial = [test for test, is_serial in collected.items() if is_serial]
            file.rows = {test: Row() for test in collected}
        found: dict[str, dict[str, Any]] = {}
        path = folder / "outcomes"
        for line in path.read_text().splitlines() if path.exists() else []:
            row = json.loads(line)
            if found.get(row["test"], {}).get("outcome") != "failed":
                found[row["test"]] = row
        if wanted and len(wanted) == 1 and not found and self.left() > 1:
            # The test has ended its process.
            message = f"exit status {process.returncode}"
            found[wanted[0]] = {"outcome": "failed", "message": message, "text": file.log}
        return found

    def each(self, file: File, way: str, tests: Iterable[str], processes: int) -> dict[str, dict[str, Any]]:
        """Run each of the tests in a process of its own, so many at once."""
        with ThreadPoolExecutor(processes) as executor:
            found = executor.map(lambda test: self.pytest(file, way, [test], 1), tests)
            return {test: row for each in found for test, row in each.items()}

    def take(self, file: File, way: str, tests: Iterable[str] | None, processes: int) -> None:
        """Run tests and note what is found."""
        if "alone" in file.plain and tests is not None:
            found = self.each(file, way, tests, processes)
        else:
            found = self.pytest(file, way, tests, processes)
        for test, row in found.items():
            known = file.rows.setdefault(test, Row())
            if way == "gpupool":
                known.own = row
            else:
                known.without = row

    def all(self) -> None:
        """Run everything."""
        processes = self.arguments.processes
        for file in self.files:
            tests = None
            if "alone" in file.plain:
                # That tells which tests there are.
                self.pytest(file, "PyTorch", [], 1)
                tests = [test for test in file.rows if test not in file.serial]
            self.take(file, "gpupool", tests, processes)
        self.report("all with gpupool")
        for file in self.files:
            wanted = [test for test, row in file.rows.items() if row.is_to_compare()]
            if self.arguments.both:
                wanted = [test for test in file.rows if test not in file.serial]
            if wanted:
                self.take(file, "PyTorch", wanted, processes)
        self.report("without gpupool")
        self.again(processes, "in a process of its own")
        for file in self.files:
            if file.serial:
                self.take(file, "gpupool", file.serial, 1)
            left = [test for test in file.serial if file.rows[test].is_to_compare() or self.arguments.both]
            if left:
                self.take(file, "PyTorch", left, 1)
        self.report("those alone on the GPU")
        self.again(1, "alone on the machine")

    def again(self, processes: int, how: str) -> None:
        """Run those whose outcomes differ again, each in a process of its own."""
        for file in self.files:
            tests = [test for test, row in file.rows.items() if row.differs()]
            own, without = (self.each(file, way, tests, processes) for way in ("gpupool", "PyTorch"))
            # A pair of outcomes counts where both were found.
            for test in own.keys() & without.keys():
                row = file.rows[test]
                before = f"{row.before}{'/'.join(row.outcomes())} {row.how}; "
                file.rows[test] = Row(own[test], without[test], how, before)
        self.report(how)

    def report(self, stage: str) -> None:
        """Write down what is known after a stage."""
        print(f"{time.monotonic() - self.began:.0f} s: done: {stage}", flush=True)
        output: Path | None = self.arguments.output
        if output is None:
            return
        output.mkdir(parents=True, exist_ok=True)
        titles = ["verdict", "file", "test", "with gpupool", "without", "words", "how", "before with/without"]
        lines = ["\t".join([*titles, "seconds", "message with", "message without"])]
        failures = []
        for file in self.files:
            for test, row in file.rows.items():
                cells = [row.verdict(), file.name, test.split("::", 1)[-1], *row.outcomes(), row.is_same(), row.how]
                cells += [row.before, row.own.get("seconds", ""), row.own.get("message", "")]
                cells += [row.without.get("message", "")]
                lines.append("\t".join(" ".join(str(cell).split()) for cell in cells))
                if row.is_told() or row.is_same() == "other words":
                    texts = f"-- with gpupool\n{row.own.get('text', '')}\n-- without\n{row.without.get('text', '')}\n"
                    failures.append(f"==== {file.name} {test}: {row.verdict()}\n{texts}")
        (output / "outcomes.tsv").write_text("\n".join(lines) + "\n")
        (output / "failures.txt").write_text("\n".join(failures)[: 12 << 20])
        (output / "summary.txt").write_text(self.summary())

    def summary(self) -> str:
        """Return what was found, in short."""
        lines = [f"{time.monotonic() - self.began:.0f} s; logs in {self.folder}"]
        for file in self.files:
            counts = Counter(row.verdict() for row in file.rows.values())
            lines.append(f"{file.name}{f' -k {file.expression!r}' if file.expression else ''}: {len(file.rows)} tests")
            lines += [f"  {count:5} {verdict}" for verdict, count in sorted(counts.items())]
            for test, row in file.rows.items():
                if row.is_told():
                    own, without = row.outcomes()
                    outcomes = f"{own} with, {without} without, {row.how}; before, with/without: {row.before or '-'}"
                    lines.append(f"  {row.verdict()}: {test.split('::', 1)[-1]}: {outcomes}")
                    lines.append(f"      {' '.join(str(row.own.get('message', '')).split())[:200]}")
            if not any(row.own for row in file.rows.values()):
                lines.append(file.log[-2000:])
        return "\n".join(lines) + "\n"


def main() -> None:
    """Run all, and print what was found."""
    parser = argparse.ArgumentParser(description="Run PyTorch's own tests with gpupool and without.")
    parser.add_argument("files", nargs="+", metavar="FILE[,WORDS]")
    parser.add_argument("-k", help="pytest's expression of the tests to run, of files that have none of their own")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=300, help="of everything")
    parser.add_argument("--patience", type=float, default=120, help="seconds after which a test hangs")
    parser.add_argument("--both", action="store_true", help="run all tests without gpupool too")
    parser.add_argument("--output", type=Path, help="a folder for the outcomes")
    own = Run(parser.parse_args())
    own.all()
    print(own.summary(), end="")
    if not any(row.own for file in own.files for row in file.rows.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
