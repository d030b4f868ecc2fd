"""Texts of a table by the columns that they take in a terminal."""

import unicodedata

# Stands where a text was cut.
CUT = "~"


def width(text: str) -> int:
    """Return how many columns of a terminal a text takes: characters of East Asia take two, accents none."""
    return len(text) if text.isascii() else sum(map(_width, text))


def cut(text: str, columns: int) -> str:
    """Return a text, or as much of its beginning as fits, with a mark at the end."""
    if width(text) <= columns:
        return text
    kept, left = [], columns - width(CUT)
    if left < 0:
        return ""
    for one in text:
        left -= _width(one)
        if left < 0:
            break
        kept.append(one)
    return "".join(kept) + CUT


def pad(text: str, columns: int, *, to_right: bool) -> str:
    """Return a text with spaces to as many columns: before it if it is to stand at the right."""
    spaces = " " * (columns - width(text))
    return spaces + text if to_right else text + spaces


def _width(one: str) -> int:
    if unicodedata.category(one) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(one) in "WF" else 1
