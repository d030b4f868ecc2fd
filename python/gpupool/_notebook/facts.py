"""Pools, ranges and counts: what their ``repr`` tells, as a table. Rust calls this, in ``src/python/values.rs``."""

from collections.abc import Mapping, Sequence

from gpupool._notebook.markup import box, table, title
from gpupool._report.units import duration, size


def html(name: str, known: Mapping[str, str | int | float], states: Sequence[str]) -> str:
    """Return the facts of an object of this class, with sizes and times as people read them too."""
    rows = [_row(fact, value) for fact, value in known.items()]
    shown: list[tuple[str, ...]]
    if any(exactly for _, _, exactly in rows):
        shown = [("", "rounded", "exactly"), *rows]
    else:
        shown = [("", "value"), *((fact, value) for fact, value, _ in rows)]
    return box(title(name, states), table(shown) if known else "")


def _row(fact: str, value: str | int | float) -> tuple[str, str, str]:
    told = str(value)
    if fact.endswith("seconds"):
        return fact.removesuffix("_seconds"), duration(round(float(value) * 1e6)), f"{told} s"
    if (fact.endswith("bytes") or fact == "limit") and told.isdecimal():
        return fact.removesuffix("_bytes"), size(int(told)), f"{told} B"
    return fact, told, ""
