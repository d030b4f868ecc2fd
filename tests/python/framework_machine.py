"""A machine whose frameworks are the real ones, over the double of the driver."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from abi import build_driver

# What the code of every test has.
PRELUDE = """
import ctypes, gc, os, sys, threading
from concurrent.futures import ThreadPoolExecutor
import gpupool

double = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20

def calls(name):
    return double.double_calls(name.encode())

def set_capture(stream, state):
    double.double_set_capture(ctypes.c_void_p(stream.ptr), state)

def is_capturing(stream):
    return double.double_capture(ctypes.c_void_p(stream.ptr)) == 1

def live():
    gc.collect()
    return gpupool.memory_stats(0).live_blocks

def error_of(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except Exception as error:
        return error
"""


def framework_machine(folder: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """Build the driver, and return what runs code there: it must succeed and write nothing to stderr."""
    build_driver(folder, "-DFOR_FRAMEWORKS")

    def run(code: str, prelude: str = PRELUDE, **variables: str | None) -> str:
        settings = {"GPUPOOL_RUNTIME": None, "LD_LIBRARY_PATH": str(folder), "FAKE_VMM": "1", "FAKE_DEVICES": "2"}
        done = run_python(prelude + code, **{**settings, **variables})
        assert (done.stderr, done.returncode) == ("", 0), f"{done.stdout}{done.stderr}exit code {done.returncode}"
        return done.stdout

    return run
