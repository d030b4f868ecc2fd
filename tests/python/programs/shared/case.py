"""Calls a function of a program, by ``case.py PROGRAM FUNCTION ARGUMENTS``, as `fork_server` does in a fork."""

import os
import sys

from fork_server import run

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(sys.argv[1])
    run(sys.argv[1], sys.argv[2:])
