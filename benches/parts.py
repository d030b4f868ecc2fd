"""The parts of pages that are not written by hand: `parts.py` rewrites them and the figures of claims.py.

A part is between two comments, ``<!-- KIND: NAME -->`` and ``<!-- /KIND -->``:

- `table: NAME`: a table of figures, by tables.toml, with their provenance
- `output: FILE: COMMAND`: the output of a command, from a file of results; without a command the whole file
- `printed: NAME`: what the command that drew docs/pictures/NAME.png printed, kept by `make pictures`

Anything else between two such comments stands in for what the site shows there (docs/hooks/pages.py).
"""

import re

import claims
import provenance
from claims import RESULTS, ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PART = re.compile(r"^<!-- (table|output|printed): ([^\n]+) -->\n.*?^<!-- /\1 -->$", re.MULTILINE | re.DOTALL)


def _made(part: re.Match[str]) -> tuple[str, list[str]]:
    """Return the text of a part, and the files of results that it is from."""
    kind, name = part.groups()
    if kind == "table":
        cells = [cell for row in claims.cells(name).values() for cell in row]
        return claims.table(name), sorted(set(map(claims.file_of, cells)))
    file, _, command = name.partition(": ")
    found = (RESULTS / file if kind == "output" else ROOT / f"docs/pictures/{name}.txt").read_text()
    if command:
        found = next(paragraph for paragraph in found.split("\n\n") if paragraph.startswith(command))
    return f"```text\n{found.rstrip()}\n```", [file] if kind == "output" else []


def _anew(part: re.Match[str]) -> str:
    """Return a part with its text anew, which says below its figures when, where and of which commit these are."""
    text, files = _made(part)
    alike: dict[str, list[str]] = {}
    for file in files:
        alike.setdefault(provenance.told(file), []).append(f"`{file}`")
    if alike:
        text += "\n\n<small>" + "<br>".join(f"{', '.join(names)}: {told}" for told, names in alike.items()) + "</small>"
    return f"<!-- {part[1]}: {part[2]} -->\n{text}\n<!-- /{part[1]} -->"


def filled(page: str) -> str:
    """Return the text of a page with its parts anew."""
    return _PART.sub(_anew, page)


def files() -> list[str]:
    """Return the files of results that the README and the pages have figures of."""
    figures = [each for page in claims.CLAIMS.values() for figures in page.values() for each in figures]
    # Figures of pictures are of the simulated device, and made anew with them.
    found = {file for file in map(claims.file_of, figures) if ".." not in file}
    return sorted(found.union(*(_made(part)[1] for page in PAGES for part in _PART.finditer(page.read_text()))))


if __name__ == "__main__":
    for path in PAGES:
        page = filled(path.read_text())
        path.write_text(claims.filled(page, claims.CLAIMS.get(str(path.relative_to(ROOT)), {})))
