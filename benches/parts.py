"""The parts of pages that are not written by hand: `parts.py` makes them and the figures of claims.py anew.

A part stands between two comments, ``<!-- KIND: NAME -->`` and ``<!-- /KIND -->``:

- `table: NAME`: a table of table.py, from the results that were measured, and what these are of
- `output: FILE: COMMAND`: the output of a command, from a file of results; without a command all of the file
- `command: NAME`: the help of `gpupool NAME`
- `program: NAME`: a program of examples/: what its head says, and a link to it
- `printed: NAME`: what the command printed that drew docs/pictures/NAME.png, kept by `make pictures`

What else is between two such comments is in place of what the site shows there (docs/hooks/pages.py).
"""

import ast
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import claims
import provenance
from claims import RESULTS, ROOT
from table import TABLES

# How the head of an example says how to run it.
_COMMAND = re.compile(r"^(?:Run it with: |    (?=python ))(.+)\n*", re.MULTILINE)
_EXAMPLES = "https://github.com/gpupool/gpupool/blob/main/examples/"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _measured(files: Iterable[str]) -> str:
    """Return the paragraph that says when, where and of which commit files of results were measured."""
    return "\n\n<small>" + "<br>".join(map(provenance.line, files)) + "</small>"


def _table(name: str) -> str:
    """Return a table of measured results, its figures at the right."""
    made = TABLES[name]
    head, line, *rows = made().splitlines()
    text = "\n".join([head, line.replace(" --- ", " ---: ").replace("---:", "---", 1), *rows])
    return text + _measured(made.files)


def _output(place: str) -> str:
    """Return the paragraph of a file that begins with a command, or all of the file, as a block."""
    file, _, command = place.partition(": ")
    found = (RESULTS / file).read_text()
    if command:
        found = next(paragraph for paragraph in found.split("\n\n") if paragraph.startswith(command))
    return f"```text\n{found.rstrip()}\n```{_measured([file])}"


def _command(name: str) -> str:
    """Return the help of a command of the command line."""
    done = subprocess.run(
        [sys.executable, "-m", "gpupool", name, "--help"],
        env={**os.environ, "COLUMNS": "88"},
        capture_output=True,
        text=True,
        check=True,
    )
    return f"```text\n{done.stdout.rstrip()}\n```"


def _program(name: str) -> str:
    """Return a section on a program: what its head says, and a link to its text."""
    text = (ROOT / "examples" / name).read_text()
    if name.endswith(".py"):
        head = ast.get_docstring(ast.parse(text)) or ""
    else:
        lines = itertools.takewhile(lambda line: line.startswith("//!"), text.splitlines())
        head = "\n".join(line.removeprefix("//!").removeprefix(" ") for line in lines)
    head = _COMMAND.sub(r"\n```\n\1\n```\n\n", head).strip()
    return f"## {Path(name).name}\n\n{head}\n\n[The program, {len(text.splitlines())} lines]({_EXAMPLES}{name})"


def _printed(name: str) -> str:
    """Return what the command of a picture printed, as a block."""
    return f"```text\n{(ROOT / 'docs/pictures' / f'{name}.txt').read_text().rstrip()}\n```"


_MAKERS = {"table": _table, "output": _output, "command": _command, "program": _program, "printed": _printed}
_PART = re.compile(rf"^<!-- ({'|'.join(_MAKERS)}): ([^\n]+) -->\n.*?^<!-- /\1 -->$", re.MULTILINE | re.DOTALL)


def filled(page: str) -> str:
    """Return the text of a page with its parts anew."""
    return _PART.sub(
        lambda part: f"<!-- {part[1]}: {part[2]} -->\n{_MAKERS[part[1]](part[2])}\n<!-- /{part[1]} -->", page
    )


def files() -> list[str]:
    """Return the files of results that the README and the pages have figures of."""
    # Figures of pictures are of the simulated device, and made anew with them.
    names = {claim["file"] for of_page in claims.claims().values() for claim in of_page if ".." not in claim["file"]}
    parts = [(part[1], part[2]) for path in PAGES for part in _PART.finditer(path.read_text())]
    of_tables = {file for kind, name in parts if kind == "table" for file in TABLES[name].files}
    of_outputs = {name.partition(": ")[0] for kind, name in parts if kind == "output"}
    return sorted({*(file for name in names for file in claims.files(name)), *of_tables, *of_outputs})


if __name__ == "__main__":
    known = claims.claims()
    for path in PAGES:
        page = filled(path.read_text())
        path.write_text(claims.filled(page, known.get(str(path.relative_to(ROOT)), [])))
