"""The blocks of device memory that a program holds, which of them are new, and which it held at its peak.

They are those of a snapshot, so what is said of them here holds for whatever framework asked for them. A block that was
freed and waits for streams is no longer held.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpupool import _native

# A stack's frames, the innermost first: function, file and line.
Frames = tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class Block:
    """A block that is held."""

    device: int
    address: int
    nbytes: int
    """Its bytes, with rounding."""
    requested: int
    pool: tuple[int, int]
    stream: int
    frames: Frames = ()
    """Where it was allocated, if that was recorded."""


def held_blocks(device: int | None = None) -> list[Block]:
    """Return all blocks that the process holds, of one device or of each that it has used."""
    if not _native.devices_in_use():
        return []
    snapshot = _native.memory_snapshot(include_traces=False)
    return [
        Block(
            segment["device"],
            block["address"],
            block["size"],
            block["requested_size"],
            segment["segment_pool_id"],
            segment["stream"],
            _frames(block),
        )
        for segment in snapshot["segments"]
        if device is None or segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]


def new_blocks(now: Iterable[Block], before: Iterable[Block]) -> list[Block]:
    """Return which blocks are more than there were before.

    A block that took the place of one of the same size on the same device is not: a program that replaces what it keeps
    holds no more than it did.
    """
    were = {(block.device, block.address, block.requested) for block in before}
    left = Counter((device, requested) for device, _, requested in were)
    found = []
    # Those that are still where one was are the old ones.
    for block in sorted(now, key=lambda block: (block.device, block.address, block.requested) not in were):
        if left[block.device, block.requested] > 0:
            left[block.device, block.requested] -= 1
        else:
            found.append(block)
    return found


def blocks_at_peak(device: int, before: Iterable[Block], events: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the new blocks of a device that were held at the moment of its peak, by what was recorded since."""
    old = {block.address: block.requested for block in before if block.device == device}
    total = highest = sum(old.values())
    peak, sizes = 0, dict(old)
    for place, event in enumerate(events):
        if event["action"] == "alloc":
            sizes[event["addr"]] = event["size"]
            total += event["size"]
        elif event["action"] == "free_completed":
            total -= sizes.pop(event["addr"], 0)
        if total > highest:
            highest, peak = total, place + 1
    found: dict[int, Block] = {}
    for event in events[:peak]:
        if event["action"] == "alloc":
            address, size = event["addr"], event["size"]
            found[address] = Block(device, address, size, size, event["pool_id"], event["stream"], _frames(event))
        elif event["action"] == "free_completed":
            found.pop(event["addr"], None)
    # Fixtures of a wider scope may have added to what was before.
    return [block for block in found.values() if old.get(block.address) != block.requested]


def _frames(entry: Mapping[str, Any]) -> Frames:
    return tuple((frame["name"], frame["filename"], frame["line"]) for frame in entry["frames"])
