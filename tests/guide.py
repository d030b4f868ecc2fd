"""The Python samples of the guide, as the programs that they are.

The samples of a page run one after the other, as a reader would put them into one file, which a process that they
spawn imports again. A comment on the line before a sample, which the reader does not see, tells more:
`<!-- sample: gpu -->` of one that needs a GPU, `needs NAME` of one that needs a package, `new` of one that begins a new
process, `alone` of one that takes most of a device's memory.
"""

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SAMPLE = re.compile(r"^(?:<!-- sample: (?P<told>[^\n]+) -->\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)

QUOTED = re.compile(
    r"^<!-- (?P<how>prints|outlines): (?P<what>[^\n]+) -->\n```\w*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
# On a busy machine no neighbour is passed by that is not stopped.
PATIENT = {"GPUPOOL_NEIGHBOUR_DEADLINE_MS": "4000"}
# What may be another one each time: addresses, files of Python, and numbers with what they count.
VARYING = re.compile(r"0x[0-9a-f]+|[\w./-]+\.py\b|\b\d[\d.,]*(?: (?:[num\u00b5]?s|B|[KMG]iB)\b)?")


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


@dataclass(frozen=True)
class Quoted:
    """A block that quotes what a command prints, or the sample before it, and where it is."""

    page: str
    line: int
    how: str
    what: str
    text: str


def quoted() -> dict[str, Quoted]:
    """Return every such block, by page and line.

    The comment on the line before it says which: `<!-- prints: sample -->`, `<!-- prints: sample by COMMAND -->` where
    it is not Python that runs it, `<!-- prints: COMMAND -->`, or `outlines` where only the headings are the same
    everywhere.
    """
    found = {}
    for page in pages():
        text = (ROOT / page).read_text()
        for block in QUOTED.finditer(text):
            line = text.count("\n", 0, block.start("text")) + 1
            found[f"{page}:{line}"] = Quoted(page, line, block["how"], block["what"], block["text"])
    return found


def shape(text: str) -> str:
    """Return a text without what varies, and without how its lines are broken."""
    return " ".join(VARYING.sub("#", text).split())


def outline(text: str) -> list[str]:
    """Return the headings of a text, which begin its lines but for the first, and nothing that is below them."""
    return [line for line in text.splitlines()[1:] if re.match(r"[A-Z]", line)]


def print_quoted(block: Quoted, folder: Path) -> str:
    """Run what a block quotes in a folder, on the simulated device, and return all that it prints."""
    environment = {
        **os.environ,
        **PATIENT,
        "GPUPOOL_RUNTIME": "host",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    if block.what.split(" by ")[0] == "sample":
        *_, program = [
            each for each in programs(False).values() if block.page == each[0].page and each[0].line < block.line
        ]
        program = [sample for sample in program if sample.line < block.line]
        script = folder / "program.py"
        script.write_text(text_of(program))
        command = f"{block.what.partition(' by ')[2] or 'python'} program.py"
    else:
        command = block.what
        (folder / "tests").symlink_to(ROOT / "tests")
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    return done.stdout + done.stderr


def pages() -> list[str]:
    """Return the README and all pages of the guide, by their paths from the repository's root."""
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]


def programs(on_gpu: bool) -> dict[str, list[Sample]]:
    """Return the programs of all pages, by page and line; without a GPU, of what needs none."""
    found: dict[str, list[Sample]] = {}
    for page in pages():
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
    program = programs(on_gpu)[name]
    lacks = missing(program)
    if lacks:
        pytest.skip(f"needs {', '.join(lacks)}")
    script = folder / f"{Path(program[0].page).stem.replace('-', '_')}_page.py"
    script.write_text(text_of(program))
    environment = {**os.environ, **PATIENT, **variables}
    command = [sys.executable, script.name]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, cwd=folder)


def text_of(program: list[Sample]) -> str:
    """Return a program as the text of a file, in which each sample is at its page's line."""
    text = ""
    for sample in program:
        text += "\n" * (sample.line - 1 - text.count("\n")) + sample.code
    return text
