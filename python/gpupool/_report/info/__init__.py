"""The report of ``gpupool.info()`` and of ``gpupool info``: what gpupool sees and uses.

Each fact comes from where it is known: devices from their driver, libraries from the loader, allocators from the
frameworks that the program has imported. Nothing is imported for it, and without the smoke test nothing is loaded,
created or allocated: a report that changes what it tells of would be of little use.
"""

from gpupool._report.info.gather import info
from gpupool._report.info.report import (
    Check,
    Device,
    Framework,
    Info,
    Library,
    Neighbours,
    Problem,
    Process,
    Runtime,
    Variable,
)

__all__ = [
    "Check",
    "Device",
    "Framework",
    "Info",
    "Library",
    "Neighbours",
    "Problem",
    "Process",
    "Runtime",
    "Variable",
    "info",
]
