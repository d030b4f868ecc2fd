"""Where libraries are kept that were compiled on this machine: one file for each version of all they depend on."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


class NoLibrary(Exception):
    """No library for this framework is there, and none could be made; the message says why, and what mends it."""


def folder() -> Path:
    """Return the folder for all that gpupool keeps."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    # The variable counts only if it is an absolute path, as its specification says.
    base = Path(caches) if os.path.isabs(caches) else Path("~/.cache").expanduser()
    return base / "gpupool"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a file to make, which becomes the one of this path at once: another process never sees half of it.

    Raises:
        NoLibrary: The folder cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=path.parent)
    except OSError as error:
        raise NoLibrary(f"{path.parent} cannot be written: {error}: set XDG_CACHE_HOME to a folder that can") from error
    with temporary as name:
        made = Path(name) / path.name
        yield made
        made.replace(path)
