"""The parts of pages that are not written by hand, in place of a line such as `<!-- table: checkouts -->`.

- `table: NAME`: a table of benches/table.py, from the results that were measured, and what these are of
- `output: FILE: COMMAND`: the output of a command, from a file of benches/results; without a command all of the file
- `command: NAME`: the help of `gpupool NAME`
- `file: PATH`: another page that is Markdown, from the repository's root
- `notebook: NAME`: a notebook of examples/, with what its cells print and show, but for its title
- `program: NAME`: a program of examples/: what its head says, and a link to it
- `printed: NAME`: what the command printed that drew docs/pictures/NAME.png, kept by `make pictures`
- `picture: NAME`: docs/pictures/NAME.svg as a part of the page, so that it follows its colours

A `figure` of benches/quoted.py stands within a line, and is as its file of results has it.
"""

import ast
import functools
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[2]
# How the head of an example says how to run it.
COMMAND = re.compile(r"^(?:Run it with: |    (?=python ))(.+)\n*", re.MULTILINE)
EXAMPLES = "https://github.com/gpupool/gpupool/blob/main/examples/"
COMMENT = re.compile(r"^<!-- (table|output|command|file|notebook|program|printed|picture): (.+) -->$", re.MULTILINE)


@functools.cache
def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _bench(name: str) -> Any:
    return _load(ROOT / f"benches/{name}.py")


def _measured(files: Iterable[str]) -> str:
    """Return the paragraph that says when, where and of which commit files of results were measured."""
    lines = map(_bench("provenance").line, files)
    return f'\n\n<p class="measured" markdown>{"<br>".join(lines)}</p>'


def table(name: str) -> str:
    """Return a table of measured results, its figures at the right."""
    made = _bench("table").TABLES[name]
    head, line, *rows = made().splitlines()
    text = "\n".join([head, line.replace(" --- ", " ---: ").replace("---:", "---", 1), *rows])
    return text + _measured(made.files)


def output(place: str) -> str:
    """Return the paragraph of a file that begins with a command, or all of the file, as a block."""
    file, _, command = place.partition(": ")
    found = (ROOT / "benches/results" / file).read_text()
    if command:
        found = next(paragraph for paragraph in found.split("\n\n") if paragraph.startswith(command))
    return f"```text\n{found.rstrip()}\n```{_measured([file])}"


def command(name: str) -> str:
    """Return the help of a command of the command line."""
    done = subprocess.run(
        [sys.executable, "-m", "gpupool", name, "--help"],
        env={**os.environ, "COLUMNS": "88"},
        capture_output=True,
        text=True,
        check=True,
    )
    return f"```text\n{done.stdout.rstrip()}\n```"


def file(path: str) -> str:
    """Return the text of a file of Markdown."""
    return (ROOT / path).read_text()


def notebook(name: str) -> str:
    """Return the cells of a notebook, its sections as those of a section, and what its code printed."""
    parts = []
    for cell in json.loads((ROOT / "examples" / name).read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text = re.sub(r"^# .+\n+", "", text)
            parts.append(re.sub(r"^(?=#)", "#", text, flags=re.MULTILINE).replace("](../docs/", "]("))
            continue
        language = "console" if text.startswith("!") else "python"
        parts.append(f"```{language}\n{re.sub(r'^!', '$ ', text)}\n```")
        printed = "".join(line for output in cell["outputs"] for line in output.get("text", []))
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
        shown = "".join(line for output in cell["outputs"] for line in output.get("data", {}).get("text/html", []))
        if shown:
            parts.append(f'<div class="shown">\n{shown}\n</div>')
    return "\n\n".join(parts)


def program(name: str) -> str:
    """Return a section on a program: what its head says, and a link to its text, which the site's search leaves out."""
    text = (ROOT / "examples" / name).read_text()
    if name.endswith(".py"):
        head = ast.get_docstring(ast.parse(text)) or ""
    else:
        lines = itertools.takewhile(lambda line: line.startswith("//!"), text.splitlines())
        head = "\n".join(line.removeprefix("//!").removeprefix(" ") for line in lines)
    head = COMMAND.sub(r"\n```\n\1\n```\n\n", head)
    return f"## {Path(name).name}\n\n{head}\n\n[The program, {len(text.splitlines())} lines]({EXAMPLES}{name})"


def printed(name: str) -> str:
    """Return what the command of a picture printed, as a block."""
    return f"```text\n{(ROOT / 'docs/pictures' / f'{name}.txt').read_text().rstrip()}\n```"


def picture(name: str) -> str:
    """Return a picture as HTML."""
    svg = (ROOT / f"docs/pictures/{name}.svg").read_text()
    # Markdown ends HTML at a blank line.
    lines = [line for line in svg.splitlines() if line.strip()]
    return "\n".join(['<div class="picture">', *lines, "</div>"])


MAKERS = {
    "table": table,
    "output": output,
    "command": command,
    "file": file,
    "notebook": notebook,
    "program": program,
    "printed": printed,
    "picture": picture,
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace each comment of a page."""

    def made(comment: re.Match[str]) -> str:
        try:
            return MAKERS[comment[1]](comment[2])
        except (KeyError, OSError, StopIteration, ValueError, subprocess.CalledProcessError) as error:
            raise PluginError(f"{page.file.src_path}: {comment[0]}: {error!r}") from error

    return _bench("quoted").plain(COMMENT.sub(made, markdown))
