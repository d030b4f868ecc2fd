"""The start of a program with the library that counts who holds a GPU's memory: ``gpupool run --watch``.

The dynamic loader reads ``LD_PRELOAD`` as a process begins. So this Python is executed once more with the same
arguments, and a program that is not Python's in its place.
"""

import contextlib
import os
import shutil
import signal
import stat
import struct
import sys
from typing import NoReturn

import gpupool
from gpupool import _native

# What has the library report as each process of a program ends. For a Python program gpupool reports.
_REPORT = "GPUPOOL_WATCH_REPORT"
_PRELOAD = "LD_PRELOAD"
# The id of the process that was executed once more.
_BEGUN = "_GPUPOOL_WATCHED_PROCESS"
_ELF = b"\x7fELF"
_PT_INTERP = 3


class CannotWatchError(gpupool.Error):
    """The library cannot be loaded into a program."""


def program(target: str) -> str | None:
    """Return the path of an executable ELF file, there or on the path; None for anything else."""
    if not os.path.exists(target) and os.path.basename(target) == target:
        target = shutil.which(target) or target
    with contextlib.suppress(OSError):
        return target if _head(target).startswith(_ELF) else None
    return None


def execute(path: str, arguments: list[str], *, has_report: bool) -> NoReturn:
    """Execute such a file in place of this process.

    Args:
        path: The file.
        arguments: The program's name and its arguments.
        has_report: Whether the library reports.

    Raises:
        CannotWatchError: The library cannot be loaded into it.
        OSError: It cannot be executed.
    """
    _execute(path, arguments, {_REPORT: "1"} if has_report else {})


def begin_anew(*, has_report: bool) -> None:
    """Execute this process once more with the library, unless it has it.

    Args:
        has_report: Whether gpupool reports.

    Raises:
        CannotWatchError: The library cannot be loaded into it.
    """
    begun = os.environ.pop(_BEGUN, None)
    if has_report:
        # What the library would tell, gpupool's report has beside what it tells of its own memory.
        os.environ.pop(_REPORT, None)
    if _native.is_watched():
        return
    if begun == str(os.getpid()):
        raise CannotWatchError(f"--watch does not work here: the loader has not loaded {_library()}")
    _execute(sys.executable, [sys.executable, *sys.orig_argv[1:]], {_BEGUN: str(os.getpid())})


def _execute(path: str, arguments: list[str], variables: dict[str, str]) -> NoReturn:
    library = _library()
    if why := _why_not(path, library):
        raise CannotWatchError(f"--watch cannot watch {path}: it {why}")
    others = [name for name in os.environ.get(_PRELOAD, "").replace(":", " ").split() if name != library]
    # Python ignores these two, and what it executes would go on to.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    os.execve(path, arguments, {**os.environ, **variables, _PRELOAD: ":".join([library, *others])})


def _library() -> str:
    if sys.platform != "linux":
        raise CannotWatchError(f"--watch needs Linux, and this is {sys.platform}")
    path = os.path.join(os.path.dirname(os.path.abspath(gpupool.__file__)), "lib", "libgpupool_watch.so")
    if not os.path.exists(path):
        raise CannotWatchError(
            f"--watch needs {path}, which is missing: install gpupool's wheel, or run `make library`"
        )
    if " " in path or ":" in path:
        raise CannotWatchError(
            f"--watch cannot load {path}, for {_PRELOAD} takes no path with spaces or colons: install gpupool elsewhere"
        )
    return path


def _why_not(path: str, library: str) -> str | None:
    """Return why the loader would not load the library into a program; None if it would, as far as can be seen."""
    head, own = _head(path), _head(library)
    if not head.startswith(_ELF):
        # It starts another program, as what runs this Python under emulation.
        return None
    # The width of words, their bytes' order and the processor.
    if (head[4:6], head[18:20]) != (own[4:6], own[18:20]):
        return "is no program for the same kind of machine as this gpupool"
    interpreter = _interpreter(path)
    if interpreter is None:
        return "is statically linked, so no loader brings a library into it"
    if os.path.basename(interpreter).startswith("ld-musl"):
        return f"is for musl, by {interpreter}, and the library is for glibc"
    with contextlib.suppress(OSError):
        capabilities = "security.capability" in os.listxattr(path)
        if os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID) or capabilities:
            return f"gets rights beyond those of its user, and the loader ignores {_PRELOAD} then"
    return None


def _head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(64)


def _interpreter(path: str) -> str | None:
    """Return the loader that a 64-bit program names: https://refspecs.linuxfoundation.org/elf/gabi4+/ch5.pheader.html."""
    with open(path, "rb") as file, contextlib.suppress(struct.error):
        table, size, count = struct.unpack("<32xQ14xHH6x", file.read(64))
        file.seek(table)
        for segment in (file.read(size) for _ in range(count)):
            kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", segment)
            if kind == _PT_INTERP:
                file.seek(offset)
                return os.fsdecode(file.read(min(length, 4096)).rstrip(b"\0"))
    return None
