"""Claims: the figures in the README and the pages, each computed from a file of benches/results.

A figure is ``FILE: FILTER as FORMAT``. FILTER is a jq filter over all lines of the file: over their objects if it has
JSON, else over their texts. Its numbers are one figure, or a range. FORMAT is Python's, such as ``.3f``.

In a page's text there are only the numbers. For each page claims.toml has the words around them, which the page has
once, with ``{}`` in the place of each figure, and these figures.

A table of figures is written as a whole: tables.toml has its ``head``, and its ``rows`` and ``columns`` by their
titles. A row and a column together define their cell: one of them has the place, ``{}``, for what the other one adds. A
cell is empty if nothing was measured.

`make figures` rewrites each figure. A test fails if a figure is not what its file says.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import jq

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benches/results"
# The figures of each page by the words around them, and the description of each table by its name.
CLAIMS: dict[str, dict[str, list[str]]] = tomllib.loads((ROOT / "benches/claims.toml").read_text())
TABLES: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "benches/tables.toml").read_text())
# A figure, or a range of them.
_ONE = r"-?\d(?:[\d.,]*\d)?"
_NUMBER = rf"({_ONE}(?:\s+to\s+{_ONE})?)"
# What filters have besides what is jq's own: the lines whose keys have these values, what a field of some lines is of
# that of as many others, one by one, how many percent a ratio is above one, and what a regex has in its group.
_FILTERS = r"""
def where($keys): map(select(. as $line | $keys | to_entries | all($line[.key] == .value)));
def ratios($these; $others; field): [where($these, $others) | map(field)] | transpose[] | first / last;
def median: map(numbers) | sort | (.[(length - 1) / 2 | floor] + .[length / 2 | floor]) / 2;
def percent: (. - 1) * 100;
def number($regex): .[] | scan($regex)[0] | tonumber;
"""


def file_of(what: str) -> str:
    """Return the file of results that a figure is from."""
    return what.partition(": ")[0]


def figure(what: str) -> str:
    """Return the text of a figure, which is empty where its file has nothing of it."""
    place, _, spec = what.rpartition(" as ")
    file, _, query = place.partition(": ")
    text, program = (RESULTS / file).read_text(), jq.compile(f"{_FILTERS} {query} | numbers")
    is_json = file.endswith(".json")
    values = (program.input_text(text, slurp=True) if is_json else program.input_value(text.splitlines())).all()
    if not values:
        return ""
    least, most = f"{min(values):{spec}}", f"{max(values):{spec}}"
    return least if least == most else f"{least} to {most}"


def pattern(words: str) -> re.Pattern[str]:
    """Return what finds the words of a claim, with each figure as a group, whatever the figures are."""
    return re.compile(r"\s+".join(re.escape(word).replace(re.escape("{}"), _NUMBER) for word in words.split()))


def filled(page: str, claims: dict[str, list[str]]) -> str:
    """Return the text of a page with each figure as its file has it.

    Raises:
        ValueError: The words of a claim are not on the page, or more than once, or a file has nothing of its figure.
    """
    for words, figures in claims.items():
        found = list(pattern(words).finditer(page))
        if len(found) != 1:
            raise ValueError(f"these words are on the page {len(found)} times, and not once: {words}")
        for (begin, end), what in reversed(list(zip(found[0].regs[1:], figures, strict=True))):
            if not (text := figure(what)):
                raise ValueError(f"there is nothing of {what}")
            # A range may be on two lines.
            if page[begin:end].split() != text.split():
                page = page[:begin] + text + page[end:]
    return page


def cells(name: str) -> dict[str, list[str]]:
    """Return the figures of each row of a table, by the row's title."""
    made = TABLES[name]
    return {
        title: [
            row.replace("{}", column) if "{}" in row else column.replace("{}", row)
            for column in made["columns"].values()
        ]
        for title, row in made["rows"].items()
    }


def table(name: str) -> str:
    """Return a table of figures as Markdown."""
    titles = TABLES[name]["columns"]
    rows = [[title, *map(figure, figures)] for title, figures in cells(name).items()]
    rows = [[TABLES[name]["head"], *titles], ["---", *["---:"] * len(titles)], *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
