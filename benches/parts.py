"""The parts of pages that are not written by hand: `parts.py` makes them and the figures of claims.py anew.

A part stands between two comments, ``<!-- KIND: NAME -->`` and ``<!-- /KIND -->``:

- `table: NAME`: a table of figures, by tables.toml, and what these are of
- `output: FILE: COMMAND`: the output of a command, from a file of results; without a command all of the file
- `printed: NAME`: what the command printed that drew docs/pictures/NAME.png, kept by `make pictures`

What else is between two such comments is in place of what the site shows there (docs/hooks/pages.py).
"""

import re
from collections.abc import Iterable

import claims
import provenance
from claims import RESULTS, ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _measured(files: Iterable[str]) -> str:
    """Return the paragraph that says when, where and of which commit files of results were measured."""
    alike: dict[str, list[str]] = {}
    for file in files:
        alike.setdefault(provenance.told(file), []).append(f"`{file}`")
    return "\n\n<small>" + "<br>".join(f"{', '.join(names)}: {told}" for told, names in alike.items()) + "</small>"


def _table(name: str) -> str:
    """Return a table of measured results, and what they are of."""
    return claims.table(name) + _measured(claims.files_of_table(name))


def _output(place: str) -> str:
    """Return the paragraph of a file that begins with a command, or all of the file, as a block."""
    file, _, command = place.partition(": ")
    found = (RESULTS / file).read_text()
    if command:
        found = next(paragraph for paragraph in found.split("\n\n") if paragraph.startswith(command))
    return f"```text\n{found.rstrip()}\n```{_measured([file])}"


def _printed(name: str) -> str:
    """Return what the command of a picture printed, as a block."""
    return f"```text\n{(ROOT / 'docs/pictures' / f'{name}.txt').read_text().rstrip()}\n```"


_MAKERS = {"table": _table, "output": _output, "printed": _printed}
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
    of_tables = {file for kind, name in parts if kind == "table" for file in claims.files_of_table(name)}
    of_outputs = {name.partition(": ")[0] for kind, name in parts if kind == "output"}
    return sorted({*(file for name in names for file in claims.files(name)), *of_tables, *of_outputs})


if __name__ == "__main__":
    known = claims.claims()
    for path in PAGES:
        page = filled(path.read_text())
        path.write_text(claims.filled(page, known.get(str(path.relative_to(ROOT)), [])))
