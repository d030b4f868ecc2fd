"""The notebooks of examples/ run from their first cell to their last, and print what they show."""

import json
import os
import re
import subprocess
import sys

import guide
import notebook
import pytest

NOTEBOOKS = sorted(guide.ROOT.glob("examples/*.ipynb"))


def code(content):
    """Return the cells of code of a notebook."""
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def outputs(cell):
    """Return what a cell printed, and what it showed without what varies: numbers, and drawings of them."""
    found = []
    for output in cell["outputs"]:
        shown = {kind: "".join(lines) for kind, lines in output.get("data", {}).items()}
        alike = {kind: guide.shape(re.sub("<svg.*?</svg>", "<svg/>", text)) for kind, text in shown.items()}
        found.append((output.get("text"), alike))
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_prints_what_it_shows(path, tmp_path):
    copy = tmp_path / path.name
    copy.write_text(path.read_text())
    # It says itself that devices are simulated.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUPOOL_")}
    command = [sys.executable, notebook.__file__, str(copy), str(tmp_path), "--write"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    shown, printed = (json.loads(place.read_text()) for place in (path, copy))
    assert [outputs(cell) for cell in code(printed)] == [outputs(cell) for cell in code(shown)]
    told = {"out_of_memory": "out of memory on device 0", "objects_in_a_notebook": "<svg"}
    assert told[path.stem] in json.dumps([outputs(cell) for cell in code(shown)])


def test_a_cell_that_fails_fails(tmp_path):
    cells = [{"cell_type": "code", "source": ["1 / 0"]}, {"cell_type": "code", "source": ["!exit 3"]}]
    for cell, reason in zip(cells, ["ZeroDivisionError", "RuntimeError: exit 3"], strict=True):
        path = tmp_path / "failing.ipynb"
        path.write_text(json.dumps({"cells": [cell]}))
        command = [sys.executable, notebook.__file__, str(path), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert reason in done.stderr
