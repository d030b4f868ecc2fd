"""What a test's ``gpu_memory`` markers allow, of itself, its class and its module together."""

import operator
from dataclasses import dataclass
from typing import Any, Never

import pytest

from gpupool._report.units import parse_size

MARKER = "gpu_memory"
# Its arguments with what they are, as pytest's list of markers and messages have them.
USAGE = f"{MARKER}(peak=None, leaks=False, device=None)"


@dataclass(frozen=True)
class Limits:
    """What a test may do, and the device that is meant; None for each that it uses."""

    peak: int | None = None
    leaks: bool = True
    device: int | None = None
    told: str = ""
    """The markers together, as one that a user could write."""


def limits_of(item: pytest.Item) -> Limits | None:
    """Return what a test's markers allow; None if it has none.

    The closest marker decides on each argument that it gives.

    Raises:
        pytest.fail.Exception: A marker is wrong; the message names the test and the argument.
    """
    markers = list(item.iter_markers(MARKER))
    if not markers:
        return None
    given: dict[str, Any] = {}
    for marker in markers:
        if marker.args:
            _refuse(item, f"takes keywords alone, and has {', '.join(map(repr, marker.args))}")
        given = {**marker.kwargs, **given}
    for name in given.keys() - {"peak", "leaks", "device"}:
        _refuse(item, f"has no argument {name}")
    if not isinstance(given.setdefault("leaks", False), bool):
        _refuse(item, f"has leaks={given['leaks']!r}: give False, so that no block may stay, or True")
    return Limits(
        peak=_bytes(item, given.get("peak")),
        leaks=given["leaks"],
        device=_device(item, given.get("device")),
        told=f"{MARKER}({', '.join(f'{name}={value!r}' for name, value in sorted(given.items(), reverse=True))})",
    )


def _bytes(item: pytest.Item, peak: Any) -> int | None:
    if isinstance(peak, str):
        try:
            return parse_size(peak)
        except ValueError:
            pass
    elif peak is None or (number := _whole(peak)) is not None:
        return None if peak is None else number
    _refuse(item, f"has peak={peak!r}, which is no size: give bytes, or a text such as '2GiB', '1.5 GiB' or '512 MiB'")


def _device(item: pytest.Item, device: Any) -> int | None:
    if device is None or (number := _whole(device)) is not None:
        return None if device is None else number
    _refuse(item, f"has device={device!r}: give a device's ordinal, such as 0, or leave it out for all")


def _whole(value: Any) -> int | None:
    """Return a number from 0 that was given as an argument, or None."""
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return None if isinstance(value, bool) or number < 0 else number


def _refuse(item: pytest.Item, what: str) -> Never:
    pytest.fail(f"the marker {MARKER} of {item.nodeid} {what}. It is {USAGE}", pytrace=False)
