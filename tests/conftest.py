"""What skips is told: how many tests for which reason. With ``--skips`` each reason must be on the list in a file.

What tests start is counted, and may not become more: what takes long is a process or a compiler for one line.
"""

import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

# What all tests of a run may start: a tenth more than they do.
MOST_STARTED = {"compilers": 372, "other processes": 610}
COMPILERS = ("cc", "c++", "gcc", "g++", "nvcc", "cmake")
_started: Counter[str] = Counter()


def _count(event: str, arguments: tuple) -> None:
    if event == "subprocess.Popen":
        name = os.path.basename(os.fsdecode(arguments[0]))
        _started["compilers" if name in COMPILERS else "other processes"] += 1
    elif event == "os.fork":
        _started["other processes"] += 1


sys.addaudithook(_count)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that CI gives."""
    text = "fail if a test skips for a reason that FILE does not list"
    parser.addoption("--skips", type=Path, metavar="FILE", help=text)


def allowed(file: Path) -> list[tuple[str, str]]:
    """Return the folder or file of tests and the pattern of the reason of each line of a list."""
    lines = [line.split("#")[0].strip() for line in file.read_text().splitlines()]
    return [(place.strip(), reason.strip()) for place, _, reason in (line.partition(":") for line in lines if line)]


def skipped(config: pytest.Config) -> Counter[tuple[str, str]]:
    """Return how many tests of each file skipped for each reason."""
    reports = config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    return Counter((report.nodeid.split("::")[0], report.longrepr[2].removeprefix("Skipped: ")) for report in reports)


def unexpected(config: pytest.Config) -> list[str]:
    """Return a line for each file and reason that the list does not have."""
    if config.option.skips is None:
        return []
    lines = allowed(config.option.skips)
    return [
        f"{file}: {reason} ({count})"
        for (file, reason), count in sorted(skipped(config).items())
        if not any(file.startswith(place) and re.fullmatch(pattern, reason) for place, pattern in lines)
    ]


def too_many() -> list[str]:
    """Return a line for each kind of process of which more were started than may be."""
    more = {kind: most for kind, most in MOST_STARTED.items() if _started[kind] > most}
    return [f"{_started[kind]} {kind}, more than {most}" for kind, most in more.items()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Add what a process of the tests has started."""
    _started.update(getattr(node, "workeroutput", {}).get("started", {}))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where a test skipped that should not have, or tests started too much."""
    if hasattr(session.config, "workerinput"):
        session.config.workeroutput["started"] = dict(_started)
    elif unexpected(session.config) or too_many():
        session.exitstatus = max(session.exitstatus, pytest.ExitCode.TESTS_FAILED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell how many tests skipped and why."""
    reasons: Counter[str] = Counter()
    for (_, reason), count in skipped(config).items():
        reasons[reason] += count
    if reasons:
        terminalreporter.section(f"{reasons.total()} skipped")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count:5} {reason}")
    lines = unexpected(config)
    if lines:
        terminalreporter.section(f"not on the list in {config.option.skips}", red=True)
        for line in lines:
            terminalreporter.line(line)
    lines = too_many()
    if lines:
        terminalreporter.section("tests start more than MOST_STARTED of tests/conftest.py says", red=True)
    terminalreporter.line("started: " + ", ".join(f"{_started[kind]} {kind}" for kind in MOST_STARTED))
    for line in lines:
        terminalreporter.line(line)
