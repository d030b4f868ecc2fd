"""The command ``gpupool info``: what is here, and whether it works, as text or JSON."""

import argparse
from typing import Any

import gpupool
from gpupool._cli.output import say


def add(commands: Any) -> None:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "info",
        help="what gpupool finds and uses here, and whether it works",
        description="Print versions, devices, libraries, frameworks, environment variables and problems. Every "
        "library is loaded, and on each device a handle of each is created and 2 MiB are allocated. The exit code is 1 "
        "if something is installed and does not work; a missing library does not count.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--no-smoke-test", action="store_true", help="load, create and allocate nothing")


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Print what is found, and return the exit code."""
    found = gpupool.info(smoke_test=not options.no_smoke_test)
    say(found.to_json() if options.json else str(found))
    return 0 if found.ok else 1
