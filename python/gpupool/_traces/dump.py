"""Snapshots as files, for PyTorch's viewers and for ``gpupool replay`` and ``gpupool plot``."""

import os
import pickle
from typing import SupportsIndex

from gpupool._native import memory_snapshot
from gpupool._traces import whole_file as _whole_file

# The newest that https://pytorch.org/memory_viz reads; Python's own default is newer from 3.14 on.
_PROTOCOL = 4


def dump_snapshot(path: str | os.PathLike[str], device: SupportsIndex | None = None) -> None:
    """Write :func:`memory_snapshot` to a file, as a pickle that https://pytorch.org/memory_viz opens.

    ``gpupool replay`` and ``python -m torch.cuda._memory_viz`` read the file too. It holds containers, numbers and
    strings alone.

    Args:
        path: The file. What was there is replaced once all is written.
        device: The device's ordinal; all devices by default.

    Raises:
        OSError: The path cannot be written; what was there before is there still. The snapshot is taken first, so that
            nothing else can fail after it.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path is {path!r}: give the path of a file, as a str or os.PathLike")
    snapshot = memory_snapshot(device=device)
    _whole_file.write(path, lambda file: pickle.dump(snapshot, file, protocol=_PROTOCOL))
