"""Machines that are not there: doubles of a driver and its libraries, and a Python with nothing but gpupool."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from abi import build_driver, build_hip, build_wheel
from processes import succeeded
from running import start_bare_command, start_bare_program


@dataclass
class Machine:
    """A machine with the double of a driver."""

    platform: str
    folder: Path

    def __post_init__(self) -> None:
        self.build()

    @property
    def driver(self) -> Path:
        """The file of its driver."""
        return self.folder / "driver" / {"cuda": "libcuda.so.1", "hip": "libamdhip64.so.7"}[self.platform]

    @property
    def site_packages(self) -> Path:
        """The folder of what is installed."""
        return self.folder / "site"

    @property
    def variables(self) -> dict[str, str | None]:
        """The environment of a process on it."""
        return {
            "GPUPOOL_RUNTIME": None,
            "FAKE_DEVICES": "2",
            "DOUBLE_DRIVER": self.driver.name,
            "LD_LIBRARY_PATH": str(self.driver.parent),
            "PYTHONPATH": str(self.site_packages),
        }

    def build(self, *flags: str) -> None:
        """Build the driver, in place of the one that is there."""
        if self.platform == "cuda":
            build_driver(self.driver.parent, *flags)
        else:
            build_hip(self.driver, *flags)

    def install(self, name: str) -> Path:
        """Install a library."""
        return build_wheel(name, self.site_packages)

    def start(self, name: str, *arguments: object, **variables: str | None) -> subprocess.CompletedProcess[str]:
        """Run a program on it."""
        return start_bare_program(name, *arguments, **{**self.variables, **variables})

    def run(self, name: str, *arguments: object, **variables: str | None) -> str:
        """Run a program on it, which must succeed and complain of nothing; return what it printed."""
        return succeeded(self.start(name, *arguments, **variables))

    def start_command(self, *arguments: object, **variables: str | None) -> subprocess.CompletedProcess[str]:
        """Run gpupool's command line on it."""
        return start_bare_command(*arguments, **{**self.variables, **variables})
