"""Claims: the figures in the README and the pages, each computed from a file of benches/results.

In a page's text the number stands alone. What it is stands in claims.toml, an entry each: the ``page``, the ``words``
around the number, which are on the page once, with ``{}`` in its place and ``{*}`` in that of other figures, the
``file``, the ``field`` and the ``format``.

A table of figures is written whole: tables.toml has its ``head``, and its ``rows`` and ``columns`` by their titles. A
cell is FILE: FIELD as FORMAT, which its row and its column say together: one of them has the place, ``{}``, for what
the other one adds. It is empty where nothing was measured.

FILE has one JSON object, or one a line; with a ``*`` it is all files so named, as of several runs. A field is

    FIELD [KEY=VALUE]... [/ FIELD [KEY=VALUE]...]

where FIELD is a key, or keys joined by ``>``, of which ``~REGEX`` stands for several; lines are chosen by KEY=VALUE,
KEY!VALUE or KEY~REGEX. Behind ``/`` is what the figures are divided by: another field of the same line, or, where
something is said anew of the lines, that field of those, one by one if they are as many, else by their median. For a
file of text FIELD is a regex in quotes, whose first group is the figure; a second one says which lines it is sought
in.

The format is one of Python's, such as ``.3f``, and words that say what becomes of several figures: ``median``,
``min``, ``max``, ``sum``, or how far they are apart, ``spread``; else it is their range. ``*NUMBER`` multiplies them,
and ``more`` has them in percent above one.

`make figures` writes each figure anew. A test fails where one is not what its file says.
"""

import functools
import glob
import json
import re
import shlex
import statistics
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benches/results"
CLAIMS = ROOT / "benches/claims.toml"
TABLES = ROOT / "benches/tables.toml"
# A figure, or a range of them.
_ONE = r"-?\d(?:[\d.,]*\d)?"
_NUMBER = rf"{_ONE}(?:\s+to\s+{_ONE})?"
_REDUCED: dict[str, Callable[[list[float]], float]] = {
    "median": statistics.median,
    "min": min,
    "max": max,
    "sum": sum,
    "spread": lambda values: max(values) - min(values),
}


def files(name: str) -> list[str]:
    """Return the files of results that a name stands for."""
    return sorted(glob.glob(name, root_dir=RESULTS))


def _texts(name: str) -> list[str]:
    return [(RESULTS / file).read_text() for file in files(name)]


def _lines(text: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def _of_field(line: Any, field: str) -> list[Any]:
    """Return what a line has in a field: nothing, one value, or those of several keys."""
    found = [line]
    for key in field.split(">"):
        inside = [each for each in found if isinstance(each, dict)]
        if key.startswith("~"):
            found = [value for each in inside for name, value in each.items() if re.search(key[1:], name)]
        else:
            found = [each[key] for each in inside if key in each]
    return found


def _conditions(words: list[str]) -> dict[str, tuple[str, str]]:
    """Return what is asked of lines: by a key how it is compared, and with what."""
    return {key: (sign, wanted) for key, sign, wanted in (re.split("([=~!])", word, maxsplit=1) for word in words)}


def _chosen(file: str, conditions: dict[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the lines that meet all conditions."""

    def meets(line: dict[str, Any], key: str, sign: str, wanted: str) -> bool:
        text = "".join(map(str, _of_field(line, key)))
        return re.search(wanted, text) is not None if sign == "~" else (text == wanted) == (sign == "=")

    lines = [line for text in _texts(file) for line in _lines(text)]
    return [line for line in lines if all(meets(line, key, *how) for key, how in conditions.items())]


def _values(file: str, asked: str) -> list[float]:
    words = shlex.split(asked)
    if not file.endswith(".json"):
        field, *where = words
        texts = _texts(file)
        if where:
            (chosen,) = where
            texts = [line for text in texts for line in text.splitlines() if re.search(chosen, line)]
        return [float(found) for text in texts for found in re.findall(field, text, re.MULTILINE)]
    place = words.index("/") if "/" in words else len(words)
    (field, *rest), divisor = words[:place], words[place + 1 :]
    conditions = _conditions(rest)
    lines = _chosen(file, conditions)
    if len(divisor) == 1:
        # Of the same lines, where both are there.
        pairs = [(_of_field(line, field), _of_field(line, divisor[0])) for line in lines]
        return [value / other for values, others in pairs for value, other in zip(values, others, strict=False)]
    values = [float(value) for line in lines for value in _of_field(line, field)]
    if divisor:
        by, *anew = divisor
        others = [
            float(value) for line in _chosen(file, conditions | _conditions(anew)) for value in _of_field(line, by)
        ]
        if len(others) != len(values):
            others = [statistics.median(others)] * len(values)
        values = [value / other for value, other in zip(values, others, strict=True)]
    return values


def figure(file: str, field: str, format: str) -> str:
    """Return the text of a figure.

    Raises:
        ValueError: No line is chosen.
    """
    values = _values(file, field)
    if not values:
        raise ValueError(f"{file} has nothing of {field}")
    spec, *words = format.split()
    for word in words:
        if word == "more":
            values = [(value - 1) * 100 for value in values]
        elif word in _REDUCED:
            values = [_REDUCED[word](values)]
        else:
            values = [value * float(word.removeprefix("*")) for value in values]
    least, most = f"{min(values):{spec}}", f"{max(values):{spec}}"
    return least if least == most else f"{least} to {most}"


def claims() -> dict[str, list[dict[str, str]]]:
    """Return the claims of each page, by the page's path."""
    found: dict[str, list[dict[str, str]]] = {}
    for claim in tomllib.loads(CLAIMS.read_text())["claims"]:
        found.setdefault(claim["page"], []).append(claim)
    return found


def pattern(words: str) -> re.Pattern[str]:
    """Return what finds the words of a claim, with the figure as its group, whatever the figures are."""
    parts = [re.sub(r"(?:\\[ \n]|\s)+", r"\\s+", re.escape(part)) for part in re.split(r"(\{\*?\})", words)]
    figures = {re.escape("{}"): f"({_NUMBER})", re.escape("{*}"): f"(?:{_NUMBER})"}
    return re.compile("".join(figures.get(part, part) for part in parts))


def filled(page: str, claims: list[dict[str, str]]) -> str:
    """Return the text of a page with each figure as its file has it.

    Raises:
        ValueError: The words of a claim are not on the page, or more than once.
    """
    for claim in claims:
        found = list(pattern(claim["words"]).finditer(page))
        if len(found) != 1:
            raise ValueError(f"{claim['page']} has {len(found)} times, and not once: {claim['words']}")
        begin, end = found[0].span(1)
        page = page[:begin] + figure(claim["file"], claim["field"], claim["format"]) + page[end:]
    return page


@functools.cache
def tables() -> dict[str, dict[str, Any]]:
    """Return the description of each table, by its name."""
    return tomllib.loads(TABLES.read_text())


def _cell(row: str, column: str) -> tuple[str, str, str]:
    """Return the file, the field and the format of a cell."""
    whole = row.replace("{}", column) if "{}" in row else column.replace("{}", row)
    (file, _, asked), format = whole.rpartition(" as ")[0].partition(": "), whole.rpartition(" as ")[2]
    return file, asked, format


def table(name: str) -> str:
    """Return a table of figures as Markdown."""
    made = tables()[name]

    def text(row: str, column: str) -> str:
        file, asked, format = _cell(row, column)
        return figure(file, asked, format) if _values(file, asked) else ""

    rows = [[made["head"], *made["columns"]], ["---", *["---:"] * len(made["columns"])]]
    rows += [
        [title, *(text(row, column) for column in made["columns"].values())] for title, row in made["rows"].items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def files_of_table(name: str) -> list[str]:
    """Return the files of results that a table has figures of."""
    made = tables()[name]
    return sorted({_cell(row, column)[0] for row in made["rows"].values() for column in made["columns"].values()})
