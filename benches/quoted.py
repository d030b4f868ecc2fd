"""Figures that stand in the text of the README and the pages, each computed from a file of benches/results.

A figure is written as a comment that says where it is from, what it is, and an end:

    <!-- figure: FILE: FIELD [KEY=VALUE]... [/ FIELD [KEY=VALUE]...] as FORMAT [HOW]... -->1.23<!-- /figure -->

FILE has one JSON object, or one a line; with a ``*`` it is all files so named, as of several runs. FIELD is a key, or
keys joined by ``>``, of which ``~REGEX`` stands for several; lines are chosen by KEY=VALUE, KEY!VALUE or KEY~REGEX.
Behind ``/`` is what the figures are divided by: another field of the same line, or, where something is said anew of the
lines, that field of those, one by one if they are as many, else by their median. For a file of text FIELD is a regex in
quotes, whose first group is the figure; a second one says which lines it is sought in.

FORMAT is one of Python's, such as ``.3f``. HOW says what becomes of several figures, ``median``, ``min``, ``max``,
or how far they are apart, ``spread``; else it is their range. ``*NUMBER`` multiplies them, and
``more`` has them in percent above one.

Usage: quoted.py PAGE... writes each figure anew. A test fails where one is not what its file says.
"""

import glob
import json
import re
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
FIGURE = re.compile(r"<!-- figure: ([^\s:]+): (.+?) -->(.*?)<!-- /figure -->", re.DOTALL)
_REDUCED = {
    "median": statistics.median,
    "min": min,
    "max": max,
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


def figure(file: str, what: str) -> str:
    """Return the text of a figure.

    Raises:
        ValueError: No line is chosen.
    """
    asked, how = what.rsplit(" as ", 1)
    values = _values(file, asked)
    if not values:
        raise ValueError(f"{file} has nothing of {asked}")
    spec, *words = how.split()
    for word in words:
        if word == "more":
            values = [(value - 1) * 100 for value in values]
        elif word in _REDUCED:
            values = [_REDUCED[word](values)]
        else:
            values = [value * float(word.removeprefix("*")) for value in values]
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
