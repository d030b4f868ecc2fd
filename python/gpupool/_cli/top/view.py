"""What a person has chosen to see, and the keys that choose it."""

from dataclasses import dataclass, replace

from gpupool._cli.top.columns import KEYS
from gpupool._cli.top.snapshot import Snapshot

# The least and the most seconds from one look to the next, and those that the keys choose from.
LEAST, MOST = 0.1, 3600.0
_INTERVALS = (LEAST, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, MOST)

# The keys with what they do: those at the foot in a word, and all in more words.
FOOT = (
    ("q", "quit"),
    ("h", "help"),
    ("s", "sort"),
    ("r", "reverse"),
    ("d", "device"),
    ("+", "slower"),
    ("-", "faster"),
    ("p", "pools"),
)
EVERY = (
    ("q", "quit, as does Ctrl-C"),
    ("s, S", "sort by the next or the previous column"),
    ("r", "reverse the order"),
    ("d", "show the next device alone, and after the last one all"),
    ("+, -", "look less often, more often"),
    ("p", "ask the processes for their pools and show them, or hide them"),
    ("space", "look now"),
    ("arrows, j, k", "scroll by a line; pages, home and end by more"),
    ("h, ?", "show this help; any key leaves it"),
)

# By how many lines or pages a key scrolls.
_LINES = {"KEY_DOWN": 1, "j": 1, "KEY_UP": -1, "k": -1}
_PAGES = {"KEY_NPAGE": 1, "KEY_PPAGE": -1}
# More lines than there are.
_END = 1 << 30


@dataclass(frozen=True)
class View:
    """What is shown, and how."""

    sort: str = "reserved"
    is_reversed: bool = False
    # The only device that is shown; None for all.
    device: int | None = None
    # The seconds from one look to the next.
    interval: float = 1.0
    has_pools: bool = False
    is_help: bool = False
    # The line of the devices and processes that stands first.
    first: int = 0


def press(view: View, key: str, snapshot: Snapshot, page: int) -> View:
    """Return the view after a key. `page` is how many lines of devices and processes there is room for."""
    if view.is_help:
        return replace(view, is_help=False)
    if key in ("h", "?"):
        return replace(view, is_help=True)
    if key in ("s", "S"):
        step = 1 if key == "s" else -1
        return replace(view, sort=KEYS[(KEYS.index(view.sort) + step) % len(KEYS)], is_reversed=False)
    if key == "r":
        return replace(view, is_reversed=not view.is_reversed)
    if key == "d":
        return replace(view, device=_next(view.device, [each.device for each in snapshot.devices]), first=0)
    if key in ("+", "="):
        return replace(view, interval=min((each for each in _INTERVALS if each > view.interval), default=MOST))
    if key == "-":
        return replace(view, interval=max((each for each in _INTERVALS if each < view.interval), default=LEAST))
    if key == "p":
        return replace(view, has_pools=not view.has_pools)
    if key in _LINES:
        return replace(view, first=max(0, view.first + _LINES[key]))
    if key in _PAGES:
        return replace(view, first=max(0, view.first + _PAGES[key] * page))
    if key in ("KEY_HOME", "KEY_END"):
        return replace(view, first=0 if key == "KEY_HOME" else _END)
    return view


def _next(device: int | None, devices: list[int]) -> int | None:
    """Return the device after this one, None after the last, and the first after None."""
    if device is None:
        return devices[0] if devices else None
    later = [each for each in devices if each > device]
    return later[0] if later else None
