"""The commands and their exit codes."""

import argparse
import importlib
import sys
import warnings
from collections.abc import Callable

import gpupool
from gpupool._cli import ending as _ending

# The commands and their modules. That of the command which is run is imported, and no other.
_MODULES = {"info": "info", "demo": "demo", "replay": "replay", "plot": "plot", "top": "top.command", "run": "run"}


def main(arguments: list[str] | None = None) -> int | Callable[[], int]:
    """Run one command and return the exit code, or what runs a program that is to end as it likes."""
    programs: list[Callable[[], int]] = []
    code = _ending.end(lambda: _run(arguments, programs))
    return programs[0] if programs else code


def _run(arguments: list[str] | None, programs: list[Callable[[], int]]) -> int:
    parser = argparse.ArgumentParser(prog="gpupool", description="Handle pools and device memory for GPU programs.")
    parser.add_argument("--version", action="version", version=f"gpupool {gpupool.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    arguments, program = list(sys.argv[1:] if arguments is None else arguments), None
    named = [name for name in _MODULES if arguments[:1] == [name]]
    modules = {name: importlib.import_module(f"gpupool._cli.{_MODULES[name]}") for name in named or _MODULES}
    for module in modules.values():
        module.add(commands)
    if named == ["run"]:
        own, program = modules["run"].split(arguments[1:])
        arguments[1:] = own
    options, unknown = parser.parse_known_args(arguments)
    parser = commands.choices[options.command]
    if unknown:
        # With the usage of the command that was given, which argparse leaves to the program.
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command == "run":
        programs.append(modules["run"].prepare(parser, options, program))
        return 0
    # What they print says so.
    warnings.filterwarnings("ignore", "no GPU was found", RuntimeWarning)
    code: int = modules[options.command].run(parser, options)
    return code
