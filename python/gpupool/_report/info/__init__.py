"""What gpupool sees and uses: the answer of ``gpupool.info()`` and of ``gpupool info``.

Everything is asked where it is known: devices of their driver, libraries of the loader, allocators of the frameworks
that the program has imported. Nothing is imported for it, and without the smoke test nothing is loaded, created or
allocated: an answer that changes what it tells of would be of little use.
"""

from gpupool._report.info.gather import info
from gpupool._report.info.report import Check, Device, Framework, Info, Library, Problem, Process, Runtime, Variable

__all__ = [
    "Check",
    "Device",
    "Framework",
    "Info",
    "Library",
    "Problem",
    "Process",
    "Runtime",
    "Variable",
    "info",
]
