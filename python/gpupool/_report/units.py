"""Numbers for people: bytes and times with a unit."""

import re

# A number and its unit: GiB and G are 1024 MiB, GB is 1000 MB.
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?) *(?:(?P<power>[KMGTkmgt])(?:iB|(?P<decimal>B)|)|B?)")


def size(nbytes: int) -> str:
    """Return a number of bytes as text, with three digits."""
    if nbytes < 1000:
        return f"{nbytes} B"
    value, power = float(nbytes), 0
    while value >= 999.5 and power < len("KMGTPEZY"):
        value /= 1024
        power += 1
    return f"{value:#.3g}".rstrip(".") + f" {'KMGTPEZY'[power - 1]}iB"


def parse_size(text: str) -> int:
    """Return the bytes that a text such as ``22GiB``, ``24 GB`` or ``512`` means.

    Raises:
        ValueError: It means no number of bytes.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size: write it as 22GiB, 24GB or in bytes")
    power = "KMGT".find(found["power"].upper()) + 1 if found["power"] else 0
    unit: int = (1000 if found["decimal"] else 1024) ** power
    return round(float(found["number"]) * unit)


def duration(microseconds: int) -> str:
    """Return a time as text, with three digits or more."""
    if microseconds < 1000:
        return f"{microseconds} µs"
    if microseconds < 1_000_000:
        return f"{microseconds / 1e3:.3g} ms"
    if microseconds < 600_000_000:
        return f"{microseconds / 1e6:.2f} s"
    return f"{microseconds / 6e7:.1f} min"


def byte_unit(largest: int) -> tuple[str, int]:
    """Return the unit for an axis of bytes, and its bytes."""
    for power, name in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if largest >= 1 << 10 * power:
            return name, 1 << 10 * power
    return "B", 1


def time_unit(largest: int) -> tuple[str, float]:
    """Return the unit for an axis of times, and its microseconds."""
    for name, microseconds in (("min", 6e7), ("s", 1e6), ("ms", 1e3)):
        if largest >= microseconds * (10 if name == "min" else 1):
            return name, microseconds
    return "µs", 1
