"""What a test that fails by its memory is told: by how much, which blocks, and which lines allocated them."""

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from gpupool._report.printable import printable
from gpupool._report.units import size
from gpupool.pytest._blocks import Block, Frames

# How many kinds of blocks a text names, and how many frames of each.
_KINDS = 10
_FRAMES = 6
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
# What calls a test is no part of it.
_CALLERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("_pytest", "pluggy", "unittest"))
_HINT = "pytest --gpu-memory-history"


def of_peak(told: str, limit: int, device: int, peak: int, at_peak: Sequence[Block] | None, now: list[Block]) -> str:
    """Return the text of a test that passed its peak.

    Args:
        told: The test's marker.
        limit: The bytes that it allows.
        device: The device where the peak was.
        peak: The test's peak there, in bytes.
        at_peak: The blocks that were live then; None if that is not known.
        now: The blocks that are live now.
    """
    lines = [
        f"{_exactly(peak, limit)} live at once on device {device}, {size(peak - limit)} more than the peak of "
        f"{_exactly(limit, peak)} that the test's marker allows: {told}",
        "",
    ]
    if at_peak:
        return "\n".join([*lines, "Live at the peak:", *_kinds(at_peak)])
    if now:
        lines += ["Of that is still live at the end of the call:", *_kinds(now)]
    else:
        lines += ["At the end of the call nothing of it is live any more."]
    return "\n".join([*lines, f"What was live at the peak, and which lines allocated it: {_HINT}"])


def of_leaks(told: str, left: list[Block], *, has_failed: bool, has_attributes: bool) -> str:
    """Return the text of a test that left blocks behind.

    Args:
        told: The test's marker.
        left: The blocks.
        has_failed: Whether the test itself failed.
        has_attributes: Whether it has attributes of an instance that pytest keeps.
    """
    count = f"{len(left)} block{'s' * (len(left) > 1)}"
    total = size(sum(block.nbytes for block in left))
    lines = [f"{count} left behind, {total}, which the test's marker does not allow: {told}", "", *_kinds(left)]
    if has_failed:
        lines.append("The test has failed: blocks of its variables stay live with its traceback, and are counted here.")
    if has_attributes:
        lines.append("pytest keeps the instance of a test's class: free what its attributes hold in teardown_method.")
    if not any(block.frames for block in left):
        lines.append(f"Which lines allocated them: {_HINT}")
    return "\n".join(lines)


def _exactly(nbytes: int, other: int) -> str:
    """Return a size, to the byte where it would read as the other one."""
    return f"{size(nbytes)} ({nbytes} bytes)" if size(nbytes) == size(other) else size(nbytes)


def _kinds(blocks: Sequence[Block]) -> list[str]:
    """Return a line for the blocks that are alike, the largest in sum first, and below it their common stack."""
    kinds: dict[tuple[int, int, tuple[int, int], int, Frames], int] = {}
    for block in blocks:
        kind = (block.nbytes, block.device, block.pool, block.stream, _shown(block.frames))
        kinds[kind] = kinds.get(kind, 0) + 1
    ranked = sorted(kinds.items(), key=lambda item: -item[0][0] * item[1])
    lines = []
    for (nbytes, device, pool, stream, frames), count in ranked[:_KINDS]:
        pool_name = "the default pool" if pool == (0, 0) else f"pool {pool}"
        stream_name = {0: "the default stream", 2: "the per-thread default streams"}.get(stream, f"stream {stream:#x}")
        lines.append(f"  {count} x {size(nbytes)} on device {device}, in {pool_name}, of {stream_name}")
        lines += [f"      {file}:{line} in {name}" for name, file, line in frames]
    if rest := ranked[_KINDS:]:
        total = sum(kind[0] * count for kind, count in rest)
        lines.append(f"  and {sum(count for _, count in rest)} more blocks, {size(total)}")
    return lines


def _shown(frames: Frames) -> Frames:
    """Return the innermost frames of a test's own code and what it calls, with files as a user would type them."""
    own = takewhile(lambda frame: not any(caller in frame[1] for caller in _CALLERS), frames)
    return tuple([(name, _typed(file), line) for name, file, line in own if not file.startswith(_PACKAGE)][:_FRAMES])


def _typed(file: str) -> str:
    here = os.getcwd() + os.sep
    return printable(file.removeprefix(here))
