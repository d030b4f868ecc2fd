"""The run of a program as Python itself would run it: its arguments, path, ``__main__``, tracebacks and exit code.

What the program raises goes on to the interpreter, which knows best how to end: by ``SystemExit``'s code, by the signal
of Ctrl-C, or with a traceback, from which only our own frames are taken.
"""

import builtins
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

# The code of a file that cannot be opened, as Python has it.
_NO_FILE = 2


def run(target: str, arguments: Sequence[str], *, is_module: bool = False) -> None:
    """Run a program in this process, and return when its code is done; threads of its own may go on.

    Args:
        target: A script, a folder or a zip file with a ``__main__.py``, or ``-`` for standard input; or the name of a
            module.
        arguments: The program's own arguments.
        is_module: Whether the target is a module's name, as after ``python -m``.

    Raises:
        BaseException: What the program raises, and ``SystemExit`` if there is none.
    """
    # Our own module stays alive: functions of it are still to run.
    _kept.append(sys.modules["__main__"])
    main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    if sys.version_info < (3, 14):
        vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    sys.argv[:] = ["-m" if is_module else target, *arguments]
    try:
        _execute(main, target, is_module)
    except SystemExit as end:
        _ends.append(end.code in (None, 0))
        raise
    except BaseException:
        _ends.append(False)
        _hide_our_frames()
        raise
    _ends.append(True)


_ends: list[bool] = []


def has_ended_well() -> bool:
    """Return whether the program's code has run, and its exit code is 0."""
    return _ends == [True]


_kept: list[ModuleType] = []


def _execute(main: ModuleType, target: str, is_module: bool) -> None:
    # Frames up to this function's are left out of tracebacks.
    as_main: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
    if is_module:
        _begin_path(os.getcwd())
        as_main(target, alter_argv=True)
    elif target == "-":
        _begin_path("")
        exec(compile(sys.stdin.read(), "<stdin>", "exec", dont_inherit=True), main.__dict__)
    elif pkgutil.get_importer(target) is not None:
        # A folder or a zip file.
        _begin_path(target, always=True)
        as_main("__main__", alter_argv=False)
    else:
        path = os.path.abspath(target)
        _begin_path(os.path.dirname(os.path.realpath(path)))
        content, code = _read(path)
        kind = SourceFileLoader if code is None else SourcelessFileLoader
        main.__dict__.update(__file__=path, __cached__=None, __loader__=kind("__main__", path))
        exec(code or compile(content, path, "exec", dont_inherit=True), main.__dict__)


def _begin_path(first: str, *, always: bool = False) -> None:
    """Let the path begin with the program's folder rather than that of the command, unless Python was told not to."""
    if not sys.flags.safe_path:
        sys.path[0] = first
    elif always:
        sys.path.insert(0, first)


def _read(path: str) -> tuple[bytes, CodeType | None]:
    """Return the content of a file, and its code where it was compiled before."""
    try:
        with io.open_code(path) as file:
            content = file.read()
    except OSError as error:
        if sys.stderr is not None:
            print(f"gpupool: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(_NO_FILE)
    return content, pkgutil.read_code(io.BytesIO(content))


def _hide_our_frames() -> None:
    """Let the traceback that ends the program begin with the program's own frames."""
    hook = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        sys.excepthook = hook
        at = traceback
        while at is not None and at.tb_frame.f_code is not _execute.__code__:
            at = at.tb_next
        own = traceback if at is None else at.tb_next
        hook(kind, error.with_traceback(own), own)

    sys.excepthook = excepthook
