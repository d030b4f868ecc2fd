"""Changes of trace files that keep their form, so that they come further than a reader's first check."""

import io
import pickle
from random import Random
from typing import Any

from gpupool import _native

NUMBERS = [
    0,
    1,
    -1,
    511,
    1 << 21,
    1 << 31,
    (1 << 53) + 1,
    (1 << 62) - 1,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
]
NUMBERS += [-(1 << 63), 1 << 64, 10**40]
TEXTS = [
    "",
    "alloc",
    "free_completed",
    "segment_map",
    "inactive",
    "active_allocated",
    "</script>",
    "\udcff",
    "x" * 3000,
]
OTHERS = [None, True, 0.5, float("nan"), b"bytes", [], {}, (), (0, 1), [[]], [{}]]
FIELDS = [
    "",
    "0x",
    "nil",
    '"',
    '""',
    "-1",
    "1e9",
    "\u0663",
    "1_0",
    " 7 ",
    "allocate",
    "free",
    "allocate failure",
    "x" * 99,
]
FIELDS += ["12:30:01:000007", "99:99:99.9", "9" * 5000, "0x" + "f" * 99, *map(str, NUMBERS)]
# A snapshot of more values is not changed by its values.
MOST = 5000


def changed_snapshot(content: bytes, random: Random) -> bytes | None:
    """Return the pickle of a snapshot with a few values changed; None for what is no snapshot."""
    try:
        snapshot = _native.unpickle(io.BytesIO(content), 1 << 26)
        for _ in range(random.choice((1, 1, 2, 5))):
            snapshot = _changed(snapshot, random)
        return pickle.dumps(snapshot, random.randint(2, 5))
    except (_native.Error, OverflowError, RecursionError):
        return None


def _changed(content: Any, random: Random) -> Any:
    """Return the content with one value changed."""
    places: list[tuple[Any, Any]] = []
    inside = [content]
    while inside and len(places) < MOST:
        value = inside.pop(random.randrange(len(inside)))
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        places += [(value, key) for key, _ in items]
        inside += [item for _, item in items if isinstance(item, (dict, list))]
    if not places:
        return _other(content, random)
    where, key = random.choice(places)
    match random.randrange(6):
        case 0:
            del where[key]
        case 1 if isinstance(where, list):
            where += (where[key:] * random.choice((1, 1, 20)))[:500]
        case 2:
            # Two places have the same object.
            other, name = random.choice(places)
            where[key] = other[name]
        case _:
            where[key] = _other(where[key], random)
    return content


def _other(value: Any, random: Random) -> Any:
    if type(value) is int and random.random() < 0.8:
        return random.choice((*NUMBERS, value + 1, value - 1, value * 2, random.randrange(1 << 48)))
    if isinstance(value, str) and random.random() < 0.8:
        return random.choice(TEXTS)
    return random.choice((*NUMBERS, *TEXTS, *OTHERS))


def changed_log(content: bytes, random: Random) -> bytes:
    """Return a log with a few fields and lines changed."""
    lines = [line.split(",") for line in content.decode("utf-8", "replace").split("\n")]
    for _ in range(random.choice((1, 1, 3, 9))):
        place = random.randrange(len(lines))
        line = lines[place]
        match random.randrange(8):
            case 0 if len(lines) > 1:
                del lines[place]
            case 1:
                lines.insert(random.randrange(len(lines)), [*line])
            case 2:
                line.insert(random.randrange(len(line) + 1), random.choice(FIELDS))
            case 3:
                # Fields of two lines change places.
                other = random.choice(lines)
                one, two = random.randrange(len(line)), random.randrange(len(other))
                line[one], other[two] = other[two], line[one]
            case _:
                line[random.randrange(len(line))] = random.choice((*FIELDS, str(random.randrange(1 << 40))))
    return "\n".join(map(",".join, lines)).encode("utf-8", "replace")
