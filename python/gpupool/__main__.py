"""The command line: ``gpupool demo``."""

import argparse
import os
import sys

import gpupool
from gpupool import _demo


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code."""
    parser = argparse.ArgumentParser(prog="gpupool", description="Handle pools for GPU libraries.")
    parser.add_argument("--version", action="version", version=f"gpupool {gpupool.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="threads come and go and share handles; a table shows what that saves")
    demo.add_argument("--threads", type=int, default=16, help="threads alive at a time (default: 16)")
    demo.add_argument("--waves", type=int, default=8, help="how often all threads end and new ones start (default: 8)")
    options = parser.parse_args(arguments)
    if options.threads < 1 or options.waves < 1:
        parser.error("--threads and --waves must be at least 1")
    try:
        _demo.run(threads=options.threads, waves=options.waves)
    except gpupool.Error as error:
        print(f"gpupool: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of a pipe has seen enough; without this the interpreter complains once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
