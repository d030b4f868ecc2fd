"""A machine whose frameworks are the real ones, over the double of the driver."""

from collections.abc import Callable
from pathlib import Path

from abi import build_driver
from running import run_program


def framework_machine(folder: Path) -> Callable[..., str]:
    """Build the driver, and return what runs a program there: it must succeed and write nothing to stderr."""
    driver = build_driver(folder, "-DFOR_FRAMEWORKS")

    def run(name: str, *arguments: object, **variables: str | None) -> str:
        machine = {
            "GPUPOOL_RUNTIME": None,
            "DOUBLE_DRIVER": driver.name,
            "LD_LIBRARY_PATH": str(folder),
            "FAKE_VMM": "1",
            "FAKE_DEVICES": "2",
        }
        return run_program(name, *arguments, **{**machine, **variables})

    return run
