"""Figures that stand in the text of the README and the pages, each computed from a file of benches/results.

A figure is written as a comment that says where it is from, what it is, and an end:

    <!-- figure: FILE: FIELD [KEY=VALUE]... [/ FIELD [KEY=VALUE]...] | FORMAT [HOW] -->1.23<!-- /figure -->

FILE has one JSON object, or one a line. FIELD is a key, or keys joined by ``>``; lines are chosen by KEY=VALUE, or
KEY~REGEX. Behind ``/`` is what the figures are divided by: another field of the same line, or, where something is said
anew of the lines, that field of those, one by one if they are as many, else by their median. HOW says what becomes of
several figures: ``median``, ``min`` or ``max``; else it is their range. For a file of text FIELD is a regex in quotes,
whose first group is the figure. FORMAT is one of Python's, such as ``.3f``.

Usage: quoted.py PAGE... writes each figure anew. A test fails where one is not what its file says.
"""

import json
import re
import shlex
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
FIGURE = re.compile(r"<!-- figure: ([^\s:]+): (.+?) -->(.*?)<!-- /figure -->", re.DOTALL)
_REDUCED = {"median": statistics.median, "min": min, "max": max}


def _lines(file: str) -> list[dict[str, Any]]:
    text = (RESULTS / file).read_text()
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def _value(line: dict[str, Any], field: str) -> Any:
    found: Any = line
    for key in field.split(">"):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _matches(line: dict[str, Any], key: str, sign: str, wanted: str) -> bool:
    text = str(_value(line, key))
    return text == wanted if sign == "=" else re.search(wanted, text) is not None


def _conditions(words: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return what is asked of lines: by a key how it is compared, and with what."""
    return {key: (sign, wanted) for key, sign, wanted in (re.split("([=~])", word, maxsplit=1) for word in words)}


def _chosen(file: str, field: str, conditions: dict[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the lines that match and have the field."""
    if not file.endswith(".json"):
        found = re.findall(field, (RESULTS / file).read_text(), re.MULTILINE)
        return [{field: float(figure)} for figure in found]
    matching = [line for line in _lines(file) if all(_matches(line, key, *how) for key, how in conditions.items())]
    return [line for line in matching if _value(line, field) is not None]


def _values(file: str, asked: str) -> list[float]:
    words = shlex.split(asked)
    place = words.index("/") if "/" in words else len(words)
    (field, *rest), divisor = words[:place], words[place + 1 :]
    conditions = _conditions(rest)
    lines = _chosen(file, field, conditions)
    values = [float(_value(line, field)) for line in lines]
    if len(divisor) == 1:
        # Of the same lines.
        return [value / float(_value(line, divisor[0])) for line, value in zip(lines, values, strict=True)]
    if divisor:
        by, *anew = divisor
        others = [_value(line, by) for line in _chosen(file, by, conditions | _conditions(anew))]
        # One by one where the rounds took turns, else the first by the median of the others.
        if len(others) != len(values):
            others = [statistics.median(others)] * len(values)
        values = [value / other for value, other in zip(values, others, strict=True)]
    return values


def figure(file: str, what: str) -> str:
    """Return the text of a figure.

    Raises:
        ValueError: No line is chosen.
    """
    asked, how = what.rsplit(" | ", 1)
    values = _values(file, asked)
    if not values:
        raise ValueError(f"{file} has nothing of {asked}")
    spec, *reduced = how.split()
    if reduced and reduced[0] in _REDUCED:
        return format(_REDUCED[reduced[0]](values), spec)
    least, most = format(min(values), spec), format(max(values), spec)
    return least if least == most else f"{least} to {most}"


def filled(page: str) -> str:
    """Return the text of a page with each figure as its file has it."""

    def anew(found: re.Match[str]) -> str:
        return f"<!-- figure: {found[1]}: {found[2]} -->{figure(found[1], found[2])}<!-- /figure -->"

    return FIGURE.sub(anew, page)


def plain(page: str) -> str:
    """Return the text of a page with each figure in place of its comments."""
    return FIGURE.sub(lambda found: figure(found[1], found[2]), page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(filled(path.read_text()))
