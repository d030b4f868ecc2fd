"""A file that is written as a whole or not at all: beside what was there before, which it then replaces.

What is no file, such as a pipe or ``/dev/stdout``, is written to as it is.
"""

import contextlib
import os
import stat
from collections.abc import Callable
from typing import IO


def check(path: str | os.PathLike[str]) -> None:
    """Refuse a file that could not be written, and leave it as it is.

    Raises:
        OSError: The file cannot be written.
    """
    _write(path, lambda file: None, is_kept=False)


def write(path: str | os.PathLike[str], fill: Callable[[IO[bytes]], object]) -> None:
    """Write a file.

    Args:
        path: The file. One that is there keeps its permissions, and a link stays a link.
        fill: Writes the content.

    Raises:
        OSError: The file cannot be written. What was there before is there.
    """
    _write(path, fill, is_kept=True)


def _write(path: str | os.PathLike[str], fill: Callable[[IO[bytes]], object], *, is_kept: bool) -> None:
    name = os.fspath(path)
    try:
        place = os.path.realpath(name)
        former = _mode(place)
        if former is not None and not stat.S_ISREG(former):
            if not is_kept:
                return
            with open(place, "wb") as file:
                fill(file)
            return
        folder, base = os.path.split(place)
        beside = os.path.join(folder, f".gpupool-{os.urandom(8).hex()}-{base[:100]}")
        try:
            with open(beside, "xb") as file:
                fill(file)
            if former is not None:
                os.chmod(beside, stat.S_IMODE(former))
            if is_kept:
                os.replace(beside, place)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
    except OSError as error:
        # A caller knows the file by its own name.
        raise type(error)(error.errno, error.strerror, name) from None


def _mode(place: str) -> int | None:
    try:
        return os.stat(place).st_mode
    except FileNotFoundError:
        return None
