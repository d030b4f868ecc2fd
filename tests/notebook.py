"""The notebooks of examples/, run without Jupyter: `python tests/notebook.py NOTEBOOK FOLDER [--write]`.

The cells run one after the other in this process, and in the folder, where they leave their files. A line that begins
with `!` is a command of the shell, as in Jupyter. With --write the notebook gets what its cells print, and the HTML of
what they show.
"""

import ast
import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path


def command(line):
    """Run a command of the shell, and print what it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env={**os.environ, "PATH": path})
    print(done.stdout, end="")
    if done.returncode:
        raise RuntimeError(f"{line}: {done.stderr}")


def run_cell(code, name, names):
    """Run a cell, and return what it prints, and the forms of its last expression, which is printed if it has one."""
    lines = [f"_command({line[1:]!r})" if line.startswith("!") else line for line in code.splitlines()]
    tree = ast.parse("\n".join(lines), name)
    shown = None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, name, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
            html = value._repr_html_() if hasattr(value, "_repr_html_") else None
            if html is not None:
                shown = {
                    "text/html": html.splitlines(keepends=True),
                    "text/plain": repr(value).splitlines(keepends=True),
                }
            elif value is not None:
                print(repr(value))
    return printed.getvalue(), shown


def run(path):
    """Run a notebook's cells, and return it with what they print."""
    notebook = json.loads(Path(path).read_text())
    names = {"__name__": "__main__", "_command": command}
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(codes, 1):
        text, shown = run_cell("".join(cell["source"]), f"cell {number}", names)
        cell["execution_count"] = number
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
        if shown is not None:
            result = {"data": shown, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
            cell["outputs"].append(result)
    return notebook


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    os.chdir(sys.argv[2])
    found = run(place)
    if "--write" in sys.argv:
        place.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
