"""The Python samples of the guide, as the programs that they are.

The samples of a page run one after the other in one process, as a reader would type them. A comment on the line before
a sample, which the reader does not see, tells more: `<!-- sample: gpu -->` of one that needs a GPU, `needs NAME` of one
that needs a package, `new` of one that begins a new process.
"""

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SAMPLE = re.compile(r"^(?:<!-- sample: (?P<told>[^\n]+) -->\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Sample:
    """A block of code, and where it is."""

    page: str
    line: int
    code: str
    told: tuple[str, ...]


def samples(page: str) -> list[Sample]:
    """Return every sample of a page, a path from the repository's root."""
    text = (ROOT / page).read_text()
    return [
        Sample(
            page,
            text.count("\n", 0, found.start("code")) + 1,
            found["code"],
            tuple(word.strip() for word in (found["told"] or "").split(",")),
        )
        for found in SAMPLE.finditer(text)
    ]


def programs(on_gpu: bool) -> dict[str, list[Sample]]:
    """Return the programs of all pages, by page and line; without a GPU, of what needs none."""
    pages = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
    found: dict[str, list[Sample]] = {}
    for page in pages:
        program: list[Sample] = []
        for sample in samples(page):
            if not program or "new" in sample.told:
                program = found.setdefault(f"{page}:{sample.line}", [])
            program.append(sample)
    if on_gpu:
        return found
    without = {name: [sample for sample in program if "gpu" not in sample.told] for name, program in found.items()}
    return {name: program for name, program in without.items() if program}


def is_installed(package: str) -> bool:
    """Return whether it could be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        # What it is a part of is not there.
        return False


def missing(program: list[Sample]) -> list[str]:
    """Return the packages that a program needs and this interpreter lacks."""
    needs = {word.removeprefix("needs ") for sample in program for word in sample.told if word.startswith("needs ")}
    return sorted(name for name in needs if not is_installed(name))


def run_apart(name: str, on_gpu: bool, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, and in this folder; skip the test where a package is missing."""
    # Not where the program runs, which is this file too.
    import pytest

    lacks = missing(programs(on_gpu)[name])
    if lacks:
        pytest.skip(f"needs {', '.join(lacks)}")
    command = [sys.executable, __file__, name, "gpu" if on_gpu else "host"]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, cwd=folder)


def run(name: str, on_gpu: bool) -> None:
    """Run a program in this process. What fails in it fails at the page's line."""
    names: dict[str, object] = {"__name__": "__main__"}
    for sample in programs(on_gpu)[name]:
        exec(compile("\n" * (sample.line - 1) + sample.code, sample.page, "exec"), names)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2] == "gpu")
