"""The parts of pages that are not written by hand, in place of a line such as `<!-- table: checkouts -->`.

- `table: NAME`: a table of benches/table.py, from the results that were measured
- `output: FILE: COMMAND`: the output of a command, from a file of benches/results
- `command: NAME`: the help of `gpupool NAME`
- `picture: NAME`: docs/pictures/NAME.svg as a part of the page, so that it follows its colours
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[2]
COMMENT = re.compile(r"^<!-- (table|output|command|picture): (.+) -->$", re.MULTILINE)


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(name: str) -> str:
    """Return a table of measured results, its figures at the right."""
    head, line, *rows = _load(ROOT / "benches/table.py").TABLES[name]().splitlines()
    return "\n".join([head, line.replace(" --- ", " ---: ").replace("---:", "---", 1), *rows])


def output(place: str) -> str:
    """Return the paragraph of a file that begins with a command, as a block."""
    file, command = place.split(": ", 1)
    paragraphs = (ROOT / "benches/results" / file).read_text().split("\n\n")
    found = next(paragraph for paragraph in paragraphs if paragraph.startswith(command))
    return f"```text\n{found.rstrip()}\n```"


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


def picture(name: str) -> str:
    """Return a picture as HTML."""
    svg = (ROOT / f"docs/pictures/{name}.svg").read_text()
    # Markdown ends HTML at a blank line.
    lines = [line for line in svg.splitlines() if line.strip()]
    return "\n".join(['<div class="picture">', *lines, "</div>"])


MAKERS = {"table": table, "output": output, "command": command, "picture": picture}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace each comment of a page."""

    def made(comment: re.Match[str]) -> str:
        try:
            return MAKERS[comment[1]](comment[2])
        except (KeyError, OSError, StopIteration, ValueError, subprocess.CalledProcessError) as error:
            raise PluginError(f"{page.file.src_path}: {comment[0]}: {error!r}") from error

    return COMMENT.sub(made, markdown)
