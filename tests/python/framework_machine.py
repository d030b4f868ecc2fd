"""A machine whose frameworks are the real ones, over the double of the driver."""

from collections.abc import Callable
from pathlib import Path

import forks
import pytest
from abi import build_driver
from running import run_program


def framework_machine(folder: Path, *imported: str) -> Callable[..., str]:
    """Build the driver, and return what runs a program there: it must succeed and write nothing to stderr.

    Args:
        folder: Where the driver is built.
        *imported: What the programs find imported, in forks of a process that has used nothing of it. Where nothing is
            named each is a new interpreter.
    """
    driver = build_driver(folder, "-DFOR_FRAMEWORKS")

    def run(name: str, *arguments: object, **variables: str | None) -> str:
        machine = {
            "GPUPOOL_RUNTIME": None,
            "DOUBLE_DRIVER": driver.name,
            "LD_LIBRARY_PATH": str(folder),
            "FAKE_VMM": "1",
            "FAKE_DEVICES": "2",
        }
        if not imported:
            return run_program(name, *arguments, **{**machine, **variables})
        with pytest.MonkeyPatch.context() as patch:
            # NumPy's library has no threads then, which a fork would not have either.
            patch.setenv("OPENBLAS_NUM_THREADS", "1")
            return forks.run_program(name, *arguments, modules=imported, **{**machine, **variables})

    return run
