"""The report of ``gpupool.info()`` and of ``gpupool info``: what gpupool sees and uses.

Each fact comes from where it is known: devices from their driver, libraries from the loader, allocators from the
frameworks that the program has imported. The report imports nothing, and without the smoke test it loads, creates and
allocates nothing: a report that changes its subject would be of little use.
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
