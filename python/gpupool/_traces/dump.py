"""Snapshots as files, for PyTorch's viewers and for ``gpupool replay`` and ``gpupool plot``."""

import os
import pickle
from typing import SupportsIndex

from gpupool._native import memory_snapshot

# The newest that https://pytorch.org/memory_viz reads; Python's own default is newer from 3.14 on.
_PROTOCOL = 4


def dump_snapshot(path: str | os.PathLike[str], device: SupportsIndex | None = None) -> None:
    """Write :func:`memory_snapshot` to a file, as a pickle that https://pytorch.org/memory_viz opens.

    The snapshot is taken first, so that a path that cannot be written (OSError) is all that can fail after that.
    ``gpupool replay`` and ``python -m torch.cuda._memory_viz`` read the file too. It holds containers, numbers and
    strings alone.
    """
    snapshot = memory_snapshot(device)
    with open(path, "wb") as file:
        pickle.dump(snapshot, file, protocol=_PROTOCOL)
