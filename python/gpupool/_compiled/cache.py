"""Where libraries are kept that were compiled on this machine: one file for each version of all they depend on."""

import atexit
import contextlib
import grp
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import _gpupool_enable

# The folders that are used in place of one that others can change, by the processes that made them.
_private: dict[int, Path] = {}


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
