"""Where libraries are kept that were compiled on this machine: one file for each version of all they depend on."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


class NoLibrary(Exception):
    """No library for this framework is there, and none could be made; the message says why, and what mends it."""


def folder() -> Path:
    """Return the folder for all that gpupool keeps.

    Raises:
        NoLibrary: The user has no home, as in many a container.
    """
    caches = os.environ.get("XDG_CACHE_HOME", "")
    # The variable counts only if it is an absolute path, as its specification says.
    if os.path.isabs(caches):
        return Path(caches) / "gpupool"
    try:
        return Path.home() / ".cache/gpupool"
    except RuntimeError as error:
        raise NoLibrary(
            f"there is no folder for what is compiled, as user {os.getuid()} has no home: set XDG_CACHE_HOME, or HOME"
        ) from error


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
