"""Draws all pictures of the guide anew, lets the notebooks run, and writes anew what commands print: `make pictures`.

No GPU is needed.

A picture is made by the command that its page shows: every line `$ gpupool ...` of a page that writes a PNG is run, in
a folder of its own. What it prints is kept beside the picture where the page shows that, by `<!-- printed: NAME -->`.
Pictures in SVG are drawn by hand. A block below
`<!-- prints: COMMAND -->` that begins with that command is written anew too.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import guide  # noqa: E402

PICTURES = ROOT / "docs/pictures"
COMMAND = re.compile(r"^\$ gpupool (.*-o (\w[\w-]*)\.png.*)$", re.MULTILINE)
# The notebooks of examples/, and the pictures that they leave behind, by their names in docs/pictures.
NOTEBOOKS = {
    "out_of_memory.ipynb": {"before.png": "oom-before.png", "after.png": "oom-after.png"},
    "objects_in_a_notebook.ipynb": {},
}


def run(folder: Path, *arguments: str) -> str:
    """Run Python in a folder, on a simulated device, and return what it prints."""
    environment = {**os.environ, "GPUPOOL_RUNTIME": "host"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def quote_anew(block: guide.Quoted) -> None:
    """Write a block of a page as what its command prints now, if it shows the command as it is."""
    command = f"$ {block.what}\n"
    if block.how == "prints" and block.text.startswith(command):
        with tempfile.TemporaryDirectory() as folder:
            printed = guide.print_quoted(block, Path(folder))
        page = ROOT / block.page
        page.write_text(page.read_text().replace(block.text, command + printed))


def main() -> None:
    """Make each picture, in a folder in which trace files are found by the same paths."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tests").symlink_to(ROOT / "tests")
        for page in sorted(ROOT.glob("docs/**/*.md")):
            text = page.read_text()
            for command, picture in COMMAND.findall(text):
                print(f"{page.relative_to(ROOT)}: {picture}.png", flush=True)
                printed = run(folder, "-m", "gpupool", *shlex.split(command))
                (PICTURES / f"{picture}.png").write_bytes((folder / f"{picture}.png").read_bytes())
                if f"<!-- printed: {picture} -->" in text:
                    (PICTURES / f"{picture}.txt").write_text(printed)
        for block in guide.quoted().values():
            quote_anew(block)
        for notebook, left in NOTEBOOKS.items():
            print(f"examples/{notebook}: {', '.join(left.values())}", flush=True)
            run(folder, str(ROOT / "tests/notebook.py"), str(ROOT / "examples" / notebook), name, "--write")
            for file, picture in left.items():
                (PICTURES / picture).write_bytes((folder / file).read_bytes())


if __name__ == "__main__":
    main()
