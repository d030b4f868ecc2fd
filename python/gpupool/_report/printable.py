"""Texts that a terminal can show, of whatever a file or its name has."""


def printable(text: str) -> str:
    """Return a text on one line, with escapes for control characters and for bytes of a name that are not UTF-8."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
