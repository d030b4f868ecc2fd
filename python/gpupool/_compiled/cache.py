"""Libraries for a framework that runs: one that came with gpupool, one that was compiled before, or one made now.

What is compiled on this machine is kept: one file for each version of all that it depends on.
"""

import atexit
import contextlib
import grp
import hashlib
import logging
import os
import pwd
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import _gpupool_enable

from gpupool import _native
from gpupool._torch.compiler import CompilationFailed

_Used = TypeVar("_Used")

# The folders that are used in place of one that others can change, by the processes that made them.
_private: dict[int, Path] = {}


class NoLibrary(Exception):
    """No library for this framework is there, and none could be made; the message says why, and what mends it."""


def first(finders: Iterable[Callable[[], Path | None]], use: Callable[[Path], _Used]) -> _Used:
    """Return what the first library is used as that one of these finds and that can be used.

    Raises:
        NoLibrary: There is none; the message has all reasons.
    """
    reasons = []
    for find in finders:
        try:
            if (path := find()) is not None:
                return use(path)
        except (NoLibrary, CompilationFailed) as error:
            reasons.append(str(error))
    raise NoLibrary("; ".join(dict.fromkeys(reasons)))


def shipped(path: Path, version: object) -> Path | None:
    """Return the path of a library that came with gpupool for a version of a framework, if it is there.

    Releases of a version share one interface; what was built between releases may have any.
    """
    is_release = re.fullmatch(r"\d+\.\d+\.\d+(\+\w+)?", str(version))
    return path if is_release and path.is_file() else None


def path_for(place: str, suffix: str, versions: tuple[Any, ...], files: Iterable[Path]) -> Path:
    """Return the path of a library that is kept: another one for each that could differ.

    Args:
        place: The folder and the name, with a slash between them.
        suffix: The end of the file's name.
        versions: The version of the framework, and what else it depends on.
        files: What it is made of; those that are missing have no part in it.
    """
    digest = hashlib.sha256(repr((*versions, _native.__version__)).encode())
    for file in files:
        with contextlib.suppress(OSError):
            digest.update(file.read_bytes())
    return folder() / f"{place}-{versions[0]}-{digest.hexdigest()[:16]}{suffix}"


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


def kept(path: Path) -> Path | None:
    """Return the file that is kept under a path, without links on the way there; None if there is none.

    Raises:
        NoLibrary: Somebody else could have put it there.
    """
    try:
        return nobody_elses(path)
    except OSError:
        return None


def nobody_elses(path: Path) -> Path:
    """Return the place that a path leads to, which only this user and root can change: code from there may run.

    Raises:
        NoLibrary: Others can change it, or a folder that it is in.
    """
    place = path.resolve(strict=True)
    # In a user namespace root may have another number, or share it with others.
    owners, owners_above = {0, os.geteuid()}, {0, os.geteuid(), os.stat("/").st_uid}
    for each in (place, *place.parents):
        about = each.stat()
        others = stat.S_IWOTH if _is_of_user_alone(about.st_gid) else stat.S_IWGRP | stat.S_IWOTH
        writable = about.st_mode & others
        # In a folder such as /tmp others can make files, and not change those of this user.
        is_shared = each != place and about.st_mode & stat.S_ISVTX
        if about.st_uid not in (owners if each in (place, place.parent) else owners_above):
            reason = f"{each} belongs to user {about.st_uid}"
        elif writable and not is_shared:
            reason = f"others may write to {each}"
        else:
            continue
        raise NoLibrary(
            f"{path} is not used, for {reason}, so its code may be anybody's: chmod go-w {each}, if it is yours, or "
            "set XDG_CACHE_HOME to a folder of this user's own, in folders that no group and nobody else may write to"
        )
    return place


def _is_of_user_alone(group: int) -> bool:
    """Return whether a group is the one of this user's name, which systems make for each user, and has nobody else."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    is_own = (user.pw_gid, user.pw_name) == (group, found.gr_name)
    return is_own and set(found.gr_mem) <= {user.pw_name}


def _private_folder(reason: NoLibrary) -> Path:
    """Return a folder of this process alone; the first time it warns of why it is used."""
    process = os.getpid()
    if process not in _private:
        _private[process] = Path(tempfile.mkdtemp(prefix="gpupool-"))
        atexit.register(_remove, process, _private[process])
        _gpupool_enable.warn(f"what gpupool compiles is kept in {_private[process]}, for this process alone: {reason}")
    return _private[process]


def _remove(process: int, folder: Path) -> None:
    # A forked child calls what its parent registered.
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def compiling(what: str, path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield what :func:`replacing` does, and log how long it took to make it.

    Raises:
        NoLibrary: As for :func:`replacing`.
    """
    began = time.monotonic()
    with replacing(path) as (made, place):
        yield made, place
    logging.getLogger("gpupool.library").info("%s: compiled to %s in %.1f s", what, place, time.monotonic() - began)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a file to make, and the place that it gets at once: another process never sees half of it.

    The place is the path's, without links on the way there; where others can change that, it is in a folder of this
    process alone.

    Raises:
        NoLibrary: The folder cannot be written, or others can change what is there.
    """
    try:
        # All that are missing, whatever the umask.
        for each in reversed((path.parent, *path.parent.parents)):
            if not each.exists():
                each.mkdir(mode=0o700, exist_ok=True)
        try:
            folder = nobody_elses(path.parent)
        except NoLibrary as reason:
            folder = nobody_elses(_private_folder(reason))
        temporary = tempfile.TemporaryDirectory(dir=folder)
    except OSError as error:
        raise NoLibrary(f"{path.parent} cannot be written: {error}: set XDG_CACHE_HOME to a folder that can") from error
    with temporary as name:
        made, place = Path(name) / path.name, folder / path.name
        yield made, place
        made.chmod(0o700)
        made.replace(place)
