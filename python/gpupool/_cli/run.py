"""The command ``gpupool run``: its options, and what it prepares before the program begins."""

import argparse
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import _gpupool_enable

from gpupool._cli import run_neighbours as _neighbours
from gpupool._cli.arguments import whole
from gpupool._run import ending as _ending
from gpupool._run import program as _program

# How many events are kept unless told otherwise, as by `record_memory_history`.
_MAX_ENTRIES = 1_000_000
_MOST_ENTRIES = 100_000_000
# The options that the next argument belongs to.
_WITH_VALUES = ("--max-entries", "--snapshot", *_neighbours.WITH_VALUES)


class Command(NamedTuple):
    """The program to run."""

    target: str
    arguments: list[str]
    is_module: bool


def add(commands: Any) -> None:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        allow_abbrev=False,
        help="run an unchanged program on gpupool, and report what that saves",
        usage="gpupool run [options] SCRIPT [ARGUMENT ...]\n"
        "       gpupool run [options] -m MODULE [ARGUMENT ...]\n"
        "       gpupool run --watch [options] PROGRAM [ARGUMENT ...]",
        description="Run a Python program as `python` does, and enable gpupool for each framework when the program "
        "imports it; no framework is imported otherwise. Without an option that names frameworks, all are enabled.",
        epilog=f"Python programs that this one starts use gpupool too, by {_gpupool_enable.VARIABLE}; report and "
        "snapshot cover only the program's own process, and are written also if it fails. The exit code is the "
        "program's, or 1 where that is 0 and the snapshot could not be written. PyTorch's own allocator is simulated "
        "with the recorded requests, to show how much memory they would have taken there.",
    )
    parser.add_argument("--all", action="store_true", help="enable every framework (default)")
    for name in sorted(_gpupool_enable.FRAMEWORKS.values()):
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=f"enable {name}")
    parser.add_argument("--report", action="store_true", help="report on standard error, at the end")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="count what other libraries hold of CUDA devices, and give memory back before a request of theirs fails; "
        "the program, a Python program or an executable file, is started with libgpupool_watch.so",
    )
    parser.add_argument("--snapshot", metavar="FILE", help="record from the start, and write a snapshot at the end")
    parser.add_argument(
        "--max-entries",
        type=whole(1, _MOST_ENTRIES),
        default=_MAX_ENTRIES,
        metavar="N",
        help="how many of the newest events --report and --snapshot keep; 64 bytes each, at the end some 500 (default: "
        f"{_MAX_ENTRIES})",
    )
    parser.add_argument("-m", metavar="MODULE", help="run a module, as python -m does")
    _neighbours.add(parser)


def split(arguments: list[str]) -> tuple[list[str], Command | None]:
    """Split the command line into the command's own part and the program's: all from its name on, whatever it is."""
    at = 0
    while at < len(arguments):
        one, rest = arguments[at], arguments[at + 1 :]
        if one == "-m":
            return arguments[:at], Command(rest[0], rest[1:], True) if rest else None
        if one.startswith("-m"):
            return arguments[:at], Command(one[2:], rest, True)
        if one == "--":
            return arguments[:at], Command(rest[0], rest[1:], False) if rest else None
        if one == "-" or not one.startswith("-"):
            return arguments[:at], Command(one, rest, False)
        at += 2 if one in _WITH_VALUES else 1
    return arguments, None


def prepare(parser: argparse.ArgumentParser, options: argparse.Namespace, command: Command | None) -> Callable[[], int]:
    """Check the options and make everything ready; return what runs the program, and raises what that raises."""
    if command is None:
        parser.error("name a script, or a module after -m")
    file = _watched_file(parser, options, command) if options.watch else None
    _neighbours.prepare(parser, options, command.target)
    every = set(_gpupool_enable.FRAMEWORKS.values())
    names = every if options.all else {name for name in every if getattr(options, name)} or every
    inherited = _gpupool_enable.parse(os.environ.get(_gpupool_enable.VARIABLE, ""))[0]
    os.environ[_gpupool_enable.VARIABLE] = ",".join(sorted(names | inherited))
    if file is not None:
        from gpupool._run import watching

        watching.execute(file, [command.target, *command.arguments], has_report=options.report)
    _ending.prepare(
        command.target, names, has_report=options.report, snapshot=options.snapshot, max_entries=options.max_entries
    )
    _gpupool_enable.install(names)

    def run() -> int:
        _program.run(command.target, command.arguments, is_module=command.is_module)
        return 0

    return run


def _watched_file(parser: argparse.ArgumentParser, options: argparse.Namespace, command: Command) -> str | None:
    """Return the file to execute; None for a Python program, and then this process is watched."""
    # Here, for it imports what few programs do.
    from gpupool._run import watching

    file = None if command.is_module else watching.program(command.target)
    if file is None:
        watching.begin_anew(has_report=options.report)
    elif options.snapshot is not None:
        parser.error(f"--snapshot is for Python programs, and {command.target} is none")
    return file
