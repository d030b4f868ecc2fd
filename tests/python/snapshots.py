"""Memory snapshots in PyTorch's form, made up for tests."""

import pickle
from pathlib import Path
from typing import Any

# The time of the first event, as PyTorch's clock has it.
ZERO = 1_700_000_000_000_000
FRAMES = [
    {"filename": "/src/model.py", "line": 12, "name": "forward"},
    {"filename": "/src/train.py", "line": 88, "name": "<module>"},
]


def entry(action: str, address: int, size: int, time: int = 0, **more: Any) -> dict[str, Any]:
    """Return an entry of the history; time in microseconds from ZERO."""
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": ZERO + time, "frames": [], **more}


def handle(time: int, library: str, action: str, number: int, device: int = 0) -> dict[str, Any]:
    """Return what became of a library handle."""
    told = {"library": library, "device": device, "action": action, "handle": number, "thread": 1}
    return {"time_us": ZERO + time, **told}


def block(size: int, state: str = "inactive", requested: int = 0, **more: Any) -> dict[str, Any]:
    """Return a block of a segment."""
    return {"size": size, "requested_size": requested, "state": state, "frames": [], **more}


def segment(address: int, *blocks: dict[str, Any], pool: tuple[int, int] = (0, 0), **more: Any) -> dict[str, Any]:
    """Return a segment of the blocks, one behind the other."""
    at = address
    for part in blocks:
        part["address"] = at
        at += part["size"]
    return {
        "device": 0,
        "address": address,
        "total_size": at - address,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": pool,
        "is_expandable": False,
        "frames": [],
        "blocks": list(blocks),
        **more,
    }


def write(path: Path, *device_traces: list[dict[str, Any]], **more: Any) -> str:
    """Write a snapshot and return its path."""
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": list(device_traces), **more}))
    return str(path)
