"""Machines that are not there: doubles of a driver and its libraries, and a Python with nothing but gpupool."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from abi import build_driver, build_hip, build_wheel


@dataclass
class Machine:
    """A machine with the double of a driver."""

    platform: str
    folder: Path
    run_bare_python: Callable[..., subprocess.CompletedProcess[str]]

    @property
    def driver(self) -> Path:
        return self.folder / "driver" / {"cuda": "libcuda.so.1", "hip": "libamdhip64.so.7"}[self.platform]

    @property
    def site_packages(self) -> Path:
        return self.folder / "site"

    def build(self, *flags: str) -> None:
        """Build the driver, in place of the one that is there."""
        if self.platform == "cuda":
            build_driver(self.driver.parent, *flags)
        else:
            build_hip(self.driver, *flags)

    def install(self, name: str) -> Path:
        """Install a library."""
        return build_wheel(name, self.site_packages)

    def start(self, code: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
        """Run code in a new process."""
        places = {"LD_LIBRARY_PATH": str(self.driver.parent), "PYTHONPATH": str(self.site_packages)}
        code = PRELUDE.format(driver=self.driver.name) + code
        return self.run_bare_python(code, **{"GPUPOOL_RUNTIME": None, "FAKE_DEVICES": "2", **places, **variables})

    def run(self, code: str, **variables: str | None) -> str:
        """What code prints that ends as it should and complains of nothing."""
        done = self.start(code, **variables)
        assert (done.stderr, done.returncode) == ("", 0), f"{done.stdout}{done.stderr}exit code {done.returncode}"
        return done.stdout


# What the code of every test has: the driver, to ask it things, and a way to make calls fail and to count them.
PRELUDE = """
import ctypes, gpupool, os, sys, threading

driver = ctypes.CDLL({driver!r})
driver.double_used.restype = ctypes.c_ulong

def fail(what=None):
    os.environ.pop("FAKE_FAIL", None)
    if what:
        os.environ["FAKE_FAIL"] = what

def calls(name, library=driver):
    return library.double_calls(name.encode())

def in_thread(function, *arguments):
    result = []
    thread = threading.Thread(target=lambda: result.append(function(*arguments)))
    thread.start()
    thread.join()
    # Python no longer waits for what ends with the thread itself, which gives its handles back.
    while os.path.exists(f"/proc/self/task/{{thread.native_id}}"):
        os.sched_yield()
    return result[0]

def error_of(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except gpupool.Error as error:
        return f"{{type(error).__name__}} {{error}}"
    return "no error"
"""
