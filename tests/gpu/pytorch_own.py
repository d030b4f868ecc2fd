"""PyTorch's own tests, with gpupool and without, in many processes at once.

    python tests/gpu/pytorch_own.py [--processes 4] [--seconds 300] [--output FOLDER] TEST_FILE... [-k EXPRESSION]

TEST_FILE is one of PyTorch's sources, such as test/test_cuda.py or test/inductor/test_cudagraph_trees.py, of about the
version that is installed. Words may follow it, with commas between: ``k=EXPRESSION`` chooses tests as pytest does, and
``most=N`` the first N of them; ``children`` has the processes that the tests start enabled too, ``pinned`` has pinned
memory come from gpupool too, ``alone`` gives each test a process of its own, and ``weight=N`` is its share of the
processes at the start: ``test_dataloader.py,k=pin,pinned``.

Each process imports PyTorch once, which on a new machine takes a minute, and takes a test when it is done with another.
Where a test ends its process, or hangs, another one goes on with those after it. In turn, until the time is over:

1. All tests run with gpupool, but for those that PyTorch marks to be alone on the GPU.
2. Those that then failed or were skipped run without; with ``--both`` all do, beside the first.
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
import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import linecache
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# What the parent process tells the plugin that this file also is, and the children of the tests.
TOLD = "OWN_TESTS"

# What later versions call the same.
LATER = {"HAS_CUDA": "HAS_CUDA_AND_TRITON"}

FAILED = ("failed", "ended", "hung")

# Until it has begun its first test, a process may take this long.
SECONDS_TO_BEGIN = 300

# With less to do than this for each process, another is not worth its start.
SECONDS_TO_SHARE = 20

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


def pytest_configure(config: Any) -> None:
    """Enable gpupool before the first test."""
    stand_in(Path(told()["file"]))
    if told()["way"] == "gpupool":
        import gpupool

        gpupool.torch.enable(pinned=told()["pinned"])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep the tests that are asked for, and tell which there are."""
    own = told()
    if own["most"]:
        del items[own["most"] :]
    wanted = None if own["wanted"] is None else set(json.loads(Path(own["wanted"]).read_text()))
    content = {item.nodeid: item.get_closest_marker("serial") is not None for item in items}
    collected = Path(own["folder"]) / "collected"
    if not collected.exists():
        new = collected.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(content))
        new.rename(collected)
    items[:] = [
        item
        for item in items
        if (item.nodeid in wanted if wanted is not None else content[item.nodeid] is False or own["serial"])
    ]


def claim_path(folder: Path, test: str) -> Path:
    """Return the file that a process makes to take a test."""
    return folder / "claims" / hashlib.sha1(test.encode()).hexdigest()


def pytest_runtestloop(session: Any) -> Any:
    """Run the tests that no other process has taken."""
    if session.testsfailed or session.config.option.collectonly:
        return None
    own = told()
    left = own["limit"] or len(session.items)
    for item in session.items:
        if left == 0:
            break
        try:
            os.close(os.open(claim_path(Path(own["folder"]), item.nodeid), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        left -= 1
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        give_back()
    return True


def give_back() -> None:
    """Give memory back that the tests of this process keep from others'."""
    import gc

    import torch

    with contextlib.suppress(Exception):
        if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > MOST_KEPT:
            gc.collect()
            torch.cuda.empty_cache()


def write_down(**content: Any) -> None:
    """Write something down at once: the process may end."""
    with open(told()["outcomes"], "a") as file:
        file.write(json.dumps(content) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Write down that a test begins, which its process may not survive."""
    write_down(test=nodeid, outcome="begun")


def pytest_runtest_logreport(report: Any) -> None:
    """Write down how a test ended, or a part of it failed."""
    if report.when != "call" and report.outcome == "passed":
        return
    outcome = "failed as expected" if report.outcome == "skipped" and hasattr(report, "wasxfail") else report.outcome
    content = {"test": report.nodeid, "outcome": outcome, "seconds": round(report.duration, 2)}
    if report.outcome == "failed":
        content.update(line=failing_line(report), message=failing_message(report), text=str(report.longrepr)[-8000:])
    write_down(**content)
    if report.outcome == "failed" and is_gpu_lost():
        # No later test of this process could pass.
        os._exit(70)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Write down that a test has ended and been torn down."""
    write_down(test=nodeid, outcome="done")


def failing_line(report: Any) -> str:
    """Return the last line of the test's own file at which a test failed."""
    file = told()["file"]
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", [])
    places = [place for entry in entries if (place := getattr(entry, "reprfileloc", None)) is not None]
    for place in reversed(places):
        if os.path.basename(place.path) == os.path.basename(file):
            return f"{place.lineno}: {linecache.getline(file, place.lineno).strip()}"
    return ""


def failing_message(report: Any) -> str:
    """Return what a test's failure says, in short."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(report.longrepr if crash is None else crash.message)[:400]


def is_gpu_lost() -> bool:
    """Return whether the GPU can no longer be used in this process."""
    import torch

    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except Exception:
        return True
    return False


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

        enable = _gpupool_enable.enable

        def enable_and_tell(name: str) -> None:
            enable(name)
            with open(Path(own["folder"]) / "enabled", "a") as file:
                file.write(f"{os.getpid()} {'not enabled' if name in _gpupool_enable.failed else 'enabled'}\n")

        _gpupool_enable.enable = enable_and_tell
        _gpupool_enable.start()
    # The one that this one hides.
    others = [path for path in sys.path if Path(path).resolve() != Path(own["site"]).resolve()]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# ---- In the parent process.


@dataclass
class File:
    """A file of tests, and how they run."""

    path: Path
    expression: str | None
    has_children: bool
    has_pinned: bool
    is_alone: bool
    most: int
    weight: float
    name: str

    @staticmethod
    def parse(text: str, expression: str | None) -> "File":
        """Return what an argument of the command says."""
        path, *words = text.split(",")
        named = dict(word.split("=", 1) for word in words if "=" in word)
        plain = {word for word in words if "=" not in word}
        if wrong := (plain - {"children", "pinned", "alone"}) | (named.keys() - {"k", "most", "weight"}):
            raise SystemExit(f"no such words: {', '.join(sorted(wrong))}")
        file = Path(path).resolve()
        if not file.is_file():
            raise SystemExit(f"there is no file {file}")
        kinds = ", ".join(f"{word} too" for word in ("children", "pinned") if word in plain)
        return File(
            path=file,
            expression=named.get("k", expression),
            has_children="children" in plain,
            has_pinned="pinned" in plain,
            is_alone="alone" in plain,
            most=int(named.get("most", 0)),
            weight=float(named.get("weight", 1)),
            name=f"{file.name} ({kinds})" if kinds else file.name,
        )


@dataclass
class Process:
    """A process that runs tests."""

    process: "subprocess.Popen[bytes]"
    outcomes: Path
    log: Path
    since: float = field(default_factory=time.monotonic)
    size: int = 0


class Work:
    """Tests of a file that run one way, and the processes that run them."""

    def __init__(self, folder: Path, file: File, way: str, wanted: Iterable[str] | None, **options: Any) -> None:
        self.file, self.way = file, way
        self.wanted = None if wanted is None else list(wanted)
        self.limit = options.get("limit", 1 if file.is_alone else 0)
        self.is_serial = options.get("serial", False)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{file.path.stem}-{way}-", dir=folder))
        (self.folder / "claims").mkdir()
        if self.wanted is not None:
            (self.folder / "wanted").write_text(json.dumps(self.wanted))
        self.site = folder / "site"
        self.site.mkdir(exist_ok=True)
        (self.site / "sitecustomize.py").write_text("import pytorch_own\n\npytorch_own.begin_child()\n")
        self.running: list[Process] = []
        self.count = 0
        # Processes in a row that have begun no test.
        self.idle = 0
        self.share = 1

    def start(self) -> None:
        """Start another process."""
        name = str(self.count)
        self.count += 1
        outcomes, log = self.folder / f"{name}.outcomes", self.folder / f"{name}.log"
        outcomes.touch()
        wanted = None if self.wanted is None else str(self.folder / "wanted")
        content = {
            "file": str(self.file.path),
            "way": self.way,
            "pinned": self.file.has_pinned,
            "most": self.file.most,
            "folder": str(self.folder),
            "outcomes": str(outcomes),
            "wanted": wanted,
            "serial": self.is_serial,
            "limit": self.limit,
            "site": str(self.site),
        }
        paths = [str(self.site)] if self.file.has_children else []
        paths += [str(Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            **os.environ,
            TOLD: json.dumps(content),
            "PYTHONPATH": os.pathsep.join(paths),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder.parent / f"compiled-{self.way}"),
            "TORCH_EXTENSIONS_DIR": str(self.folder / f"built-{name}"),
        }
        variables.pop("GPUPOOL_ENABLE", None)
        if self.way == "gpupool" and self.file.has_children:
            variables["GPUPOOL_ENABLE"] = "torch"
        options = ["-c", os.devnull, "--rootdir", str(self.file.path.parent), "-q", "-p", "pytorch_own"]
        options += [part for name in ("cacheprovider", "xdist", "timeout") for part in ("-p", f"no:{name}")]
        if self.file.expression:
            options += ["-k", self.file.expression]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, str(self.file.path)],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(Process(process, outcomes, log))

    def tests(self) -> list[str] | None:
        """Return its tests, or None where no process has collected them yet."""
        if self.wanted is not None:
            return self.wanted
        collected = self.folder / "collected"
        if not collected.exists():
            return None
        return [test for test, serial in json.loads(collected.read_text()).items() if self.is_serial or not serial]

    def serial_tests(self) -> list[str]:
        """Return those that PyTorch marks to be alone on the GPU."""
        collected = self.folder / "collected"
        if not collected.exists():
            return []
        return [test for test, serial in json.loads(collected.read_text()).items() if serial]

    def claimed(self) -> int:
        """Return how many tests processes have taken."""
        return sum(1 for _ in os.scandir(self.folder / "claims"))

    def need(self) -> float:
        """Return how much another process is needed; 0 if not at all."""
        if self.idle > 1:
            return 0
        tests = self.tests()
        if tests is None:
            return max(0, self.share - len(self.running)) * 1e6
        left = len(tests) - self.claimed()
        if self.limit:
            starting = sum(process.size == 0 for process in self.running)
            return max(0, left - starting) * 1e3
        if left <= 0:
            return 0
        seconds = [row.get("seconds", 0.0) for row in self.outcomes().values() if row["outcome"] != "begun"]
        each = sum(seconds) / len(seconds) if len(seconds) > 3 else 3
        if self.running and left * each / len(self.running) < SECONDS_TO_SHARE:
            return 0
        return left * (each + 0.01) / (len(self.running) + 1)

    def watch(self, patience: float) -> None:
        """See which processes have ended, and end those that hang."""
        now = time.monotonic()
        for process in list(self.running):
            status = process.process.poll()
            size = process.outcomes.stat().st_size
            if size != process.size:
                process.size, process.since = size, now
            if status is None and now - process.since > (patience if size else SECONDS_TO_BEGIN):
                # The log gets the stacks of its threads.
                process.process.send_signal(signal.SIGABRT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.process.wait(3)
                self._end(process, "hung")
            elif status is not None:
                self._end(process, "ended")

    def end_all(self) -> None:
        """End all processes, for the time is over."""
        for process in list(self.running):
            self._end(process, "cut off")

    def _end(self, process: Process, outcome: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.process.pid, signal.SIGKILL)
        process.process.wait()
        self.running.remove(process)
        rows = [json.loads(line) for line in process.outcomes.read_text().splitlines()]
        began = [row["test"] for row in rows if row["outcome"] == "begun"]
        # At the end of the time the outcome of a test counts that is only being torn down.
        last = {"done"} if outcome != "cut off" else {row["outcome"] for row in rows} - {"begun"}
        finished = {row["test"] for row in rows if row["outcome"] in last}
        unfinished = [test for test in began if test not in finished]
        with process.outcomes.open("a") as file:
            for test in unfinished:
                tail = process.log.read_bytes()[-4000:].decode(errors="replace")
                seconds = round(time.monotonic() - process.since, 1)
                message = f"exit status {process.process.returncode}"
                row = {"test": test, "outcome": outcome, "seconds": seconds, "message": message, "text": tail}
                file.write(json.dumps(row) + "\n")
        if outcome != "cut off":
            self.idle = 0 if began else self.idle + 1

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """Return what is known of each test that has begun: the worst of what was written, or the last of the rest."""
        found: dict[str, dict[str, Any]] = {}
        for path in self.folder.glob("*.outcomes"):
            for line in path.read_text().splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    # It is being written.
                    continue
                former = found.get(row["test"])
                if former is None or (row["outcome"] != "done" and former["outcome"] not in FAILED):
                    found[row["test"]] = row
        return found

    def enabled(self) -> Counter[str]:
        """Return how many processes, with those that tests started, were enabled by the variable, and how many not."""
        path = self.folder / "enabled"
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(line.split(" ", 1)[1] for line in lines)

    def complaint(self) -> str:
        """Return the end of its last log if no process of it began a test."""
        if self.idle < 2 or self.outcomes():
            return ""
        log = self.folder / f"{self.count - 1}.log"
        return log.read_text(errors="replace")[-2000:]


def run(works: list[Work], processes: int, end: float, patience: float, tell: Callable[[], None]) -> None:
    """Run all tests of these works, with at most so many processes at once, until then."""
    total = sum(work.file.weight for work in works) or 1
    for work in works:
        work.share = max(1, round(processes * work.file.weight / total))
    next_told = time.monotonic() + 60
    while works:
        for work in works:
            work.watch(patience)
        if time.monotonic() > end:
            for work in works:
                work.end_all()
            break
        while sum(len(work.running) for work in works) < processes:
            needed, best = max(((work.need(), index) for index, work in enumerate(works)), key=lambda pair: pair[0])
            if needed <= 0:
                break
            works[best].start()
        if not any(work.running for work in works):
            break
        if time.monotonic() > next_told:
            tell()
            next_told = time.monotonic() + 60
        time.sleep(0.3)


@dataclass
class Row:
    """What is known of a test."""

    own: dict[str, Any] | None = None
    without: dict[str, Any] | None = None
    how: str = "in company"
    # What was found in company, where it is not the last word.
    before: str = ""

    def outcome(self, way: str) -> str:
        """Return its outcome one way."""
        row = self.own if way == "gpupool" else self.without
        return "not run" if row is None or row["outcome"] in ("begun", "cut off", "done") else str(row["outcome"])

    def verdict(self) -> str:
        """Return what the outcomes say of gpupool."""
        own, without = self.outcome("gpupool"), self.outcome("PyTorch")
        if own == "not run":
            return "not run"
        if own in FAILED:
            if without == "not run":
                return "not compared"
            return "fails with both" if without in FAILED else "fails with gpupool alone"
        if without in FAILED:
            return "fails without gpupool alone"
        if own == "skipped" and without == "passed":
            return "skipped with gpupool alone"
        return own if not self.before else f"{own} {self.how}"

    def differs(self) -> bool:
        """Return whether gpupool seems to be the reason of what happens."""
        return self.verdict() in ("fails with gpupool alone", "skipped with gpupool alone", "not compared")

    def is_doubtful(self) -> bool:
        """Return whether it is to be run again: also where it ends its process one way, and only fails the other."""
        own, without = self.outcome("gpupool"), self.outcome("PyTorch")
        return self.differs() or (self.verdict() == "fails with both" and own != without)

    def is_same(self) -> str:
        """Return whether it fails with the same words both ways, but for numbers."""
        if self.verdict() != "fails with both":
            return ""
        words = [
            re.sub(r"0x[0-9a-f]+|\d+", "#", str((row or {}).get("message", ""))) for row in (self.own, self.without)
        ]
        return "same words" if words[0] == words[1] else "other words"

    def is_told(self) -> bool:
        """Return whether the summary names it."""
        return self.differs() or bool(self.before) or self.verdict() == "fails without gpupool alone"


class Run:
    """All that a command runs, and what it has found."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.files = [File.parse(text, arguments.k) for text in arguments.files]
        self.folder = Path(tempfile.mkdtemp(prefix="pytorch-own-"))
        self.began = time.monotonic()
        self.works: list[tuple[int, Work]] = []
        self.rows: list[dict[str, Row]] = [{} for _ in self.files]
        self.stage = "1"

    def work(self, index: int, way: str, wanted: Iterable[str] | None, **options: Any) -> Work:
        """Return new work."""
        work = Work(self.folder, self.files[index], way, wanted, **options)
        self.works.append((index, work))
        return work

    def do(self, works: list[Work], processes: int, share: float) -> None:
        """Run works until this share of the time is over."""
        end = self.began + self.arguments.seconds * share
        run(works, processes, end, self.arguments.patience, self.tell)

    def take(self, works: list[Work]) -> None:
        """Note what works have found."""
        for work in works:
            index = next(index for index, one in self.works if one is work)
            rows = self.rows[index]
            for test in work.tests() or []:
                rows.setdefault(test, Row())
            for test in work.serial_tests() if work.wanted is None else []:
                rows.setdefault(test, Row())
            for test, found in work.outcomes().items():
                if found["outcome"] in ("begun", "cut off"):
                    continue
                row = rows.setdefault(test, Row())
                if work.way == "gpupool":
                    row.own = found
                else:
                    row.without = found

    def all(self) -> None:
        """Run everything."""
        processes, indices = self.arguments.processes, range(len(self.files))
        share = self.arguments.first
        # Of what is left then.
        without, again, serial_own, serial_without = (share + (1 - share) * part for part in (0.37, 0.63, 0.79, 0.87))
        first = [self.work(index, "gpupool", None) for index in indices]
        beside = [self.work(index, "PyTorch", None) for index in indices] if self.arguments.both else []
        self.do([*first, *beside], processes, share)
        self.take([*first, *beside])
        self.report("all with gpupool")

        wanted = [[t for t, row in self.rows[i].items() if self.is_to_compare(row)] for i in indices]
        second = [self.work(index, "PyTorch", wanted[index]) for index in indices if wanted[index]]
        self.do(second, processes, without)
        self.take(second)
        self.report("without gpupool")

        self.again(processes, again, "in a process of its own", Row.is_doubtful)

        for index in indices:
            if serial := first[index].serial_tests():
                own = self.work(index, "gpupool", serial, serial=True, limit=0)
                self.do([own], 1, serial_own)
                self.take([own])
                left = [test for test in serial if self.is_to_compare(self.rows[index][test]) or self.arguments.both]
                if left:
                    plain = self.work(index, "PyTorch", left, serial=True, limit=0)
                    self.do([plain], 1, serial_without)
                    self.take([plain])
        self.report("those alone on the GPU")

        self.again(1, 1, "alone on the machine", Row.differs)

    @staticmethod
    def is_to_compare(row: Row) -> bool:
        """Return whether a test runs without gpupool too."""
        return row.outcome("gpupool") in (*FAILED, "skipped") and row.outcome("PyTorch") == "not run"

    def again(self, processes: int, share: float, how: str, is_wanted: Callable[[Row], bool]) -> None:
        """Run those whose outcomes differ again, each in a process of its own."""
        pairs = []
        for index, rows in enumerate(self.rows):
            if differing := [test for test, row in rows.items() if is_wanted(row)]:
                pairs.append([self.work(index, way, differing, limit=1) for way in ("gpupool", "PyTorch")])
        works = [work for pair in pairs for work in pair]
        self.do(works, processes, share)
        for own, without in pairs:
            # A pair of outcomes counts where both were found.
            found = [work.outcomes() for work in (own, without)]
            rows = self.rows[next(index for index, one in self.works if one is own)]
            for test in found[0].keys() & found[1].keys():
                new = Row(found[0][test], found[1][test], how)
                if "not run" not in (new.outcome("gpupool"), new.outcome("PyTorch")):
                    row = rows[test]
                    new.before = f"{row.before}{row.outcome('gpupool')}/{row.outcome('PyTorch')} {row.how}; "
                    rows[test] = new
        self.report(how)

    def tell(self) -> None:
        """Write down what is known so far, while tests run."""
        counts = Counter(row["outcome"] for _, work in self.works for row in work.outcomes().values())
        print(f"{time.monotonic() - self.began:.0f} s: {dict(counts)}", flush=True)

    def report(self, stage: str) -> None:
        """Write down what is known after a stage."""
        print(f"{time.monotonic() - self.began:.0f} s: done: {stage}", flush=True)
        output: Path | None = self.arguments.output
        if output is None:
            return
        output.mkdir(parents=True, exist_ok=True)
        titles = [
            "verdict",
            "file",
            "test",
            "with gpupool",
            "without",
            "words",
            "how",
            "before with/without",
            "seconds",
        ]
        lines = ["\t".join([*titles, "line", "message with", "message without"])]
        failures = []
        for file, rows in zip(self.files, self.rows, strict=True):
            for test, row in rows.items():
                own, without = row.own or {}, row.without or {}
                cells = [row.verdict(), file.name, test.split("::", 1)[-1], row.outcome("gpupool")]
                cells += [
                    row.outcome("PyTorch"),
                    row.is_same(),
                    row.how,
                    row.before,
                    own.get("seconds", ""),
                    own.get("line", ""),
                ]
                cells += [own.get("message", ""), without.get("message", "")]
                lines.append("\t".join(" ".join(str(cell).split()) for cell in cells))
                if row.is_told() or row.is_doubtful() or row.is_same() == "other words":
                    texts = f"-- with gpupool\n{own.get('text', '')}\n-- without\n{without.get('text', '')}\n"
                    failures.append(f"==== {file.name} {test}: {row.verdict()}\n{texts}")
        (output / "outcomes.tsv").write_text("\n".join(lines) + "\n")
        (output / "failures.txt").write_text("\n".join(failures)[: 12 << 20])
        (output / "summary.txt").write_text(self.summary())

    def summary(self) -> str:
        """Return what was found, in short."""
        lines = [f"{time.monotonic() - self.began:.0f} s; logs in {self.folder}"]
        for index, (file, rows) in enumerate(zip(self.files, self.rows, strict=True)):
            counts = Counter(row.verdict() for row in rows.values())
            lines.append(f"{file.name}{f' -k {file.expression!r}' if file.expression else ''}: {len(rows)} tests")
            lines += [f"  {count:5} {verdict}" for verdict, count in sorted(counts.items())]
            works = [work for number, work in self.works if number == index]
            if file.has_children:
                enabled: Counter[str] = sum((work.enabled() for work in works), Counter())
                lines.append(f"  Pythons in which the variable enabled gpupool: {dict(enabled)}")
            for test, row in rows.items():
                own, without = row.outcome("gpupool"), row.outcome("PyTorch")
                if row.is_told():
                    found = row.own or {}
                    outcomes = f"{own} with, {without} without, {row.how}; before, with/without: {row.before or '-'}"
                    lines.append(f"  {row.verdict()}: {test.split('::', 1)[-1]}: {outcomes}")
                    message = " ".join(str(found.get("message", "")).split())[:200]
                    lines.append(f"      {found.get('line', '')} | {message}")
                elif row.outcome("gpupool") in ("ended", "hung"):
                    lines.append(f"  {test.split('::', 1)[-1]}: {own} with, {without} without, {row.how}")
            lines += [complaint for work in works if (complaint := work.complaint())][:1]
        return "\n".join(lines) + "\n"


def main() -> None:
    """Run all, and print what was found."""
    parser = argparse.ArgumentParser(description="Run PyTorch's own tests with gpupool and without.")
    parser.add_argument("files", nargs="+", metavar="FILE[,WORDS]")
    parser.add_argument("-k", help="pytest's expression of the tests to run, of files that have none of their own")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=300, help="of everything")
    parser.add_argument("--first", type=float, default=0.62, help="the share of the time for all with gpupool, at most")
    parser.add_argument("--patience", type=float, default=120, help="seconds after which a test hangs")
    parser.add_argument("--both", action="store_true", help="run all tests without gpupool too")
    parser.add_argument("--output", type=Path, help="a folder for the outcomes")
    own = Run(parser.parse_args())
    try:
        own.all()
    finally:
        for _, work in own.works:
            work.end_all()
    print(own.summary(), end="")
    if not any(own.rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
