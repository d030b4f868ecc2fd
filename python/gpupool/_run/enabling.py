"""The ways to enable gpupool for a framework that has just been imported.

A program that forks before it first uses a GPU must go on to work. So none of these may start the driver, as
``enable()`` of some frameworks does.
"""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

# NVIDIA's driver has a folder here for each GPU.
_GPUS = "/proc/driver/nvidia/gpus"
# The most devices of a machine where that is not there.
_MOST_DEVICES = 16

# The names of the frameworks that were enabled here.
enabled: set[str] = set()


def enable(name: str) -> None:
    """Enable gpupool for a framework, without a call of the driver.

    Args:
        name: The name of gpupool's module for it.

    Raises:
        Exception: It cannot be enabled, for reasons that are the framework's or gpupool's.
    """
    _WAYS.get(name, _plainly)(name)
    enabled.add(name)


def _plainly(name: str) -> None:
    importlib.import_module(f"gpupool.{name}").enable()


def _cuda_core(name: str) -> None:
    importlib.import_module("gpupool._run.cuda_core_devices").install()


def _numba(name: str) -> None:
    manager = sys.modules.get("gpupool._frameworks.numba_manager")
    # That module imports Numba. While it does, it is the program that enables gpupool.
    if manager is None or hasattr(manager, "MemoryManager"):
        _plainly(name)


def _rmm(name: str) -> None:
    importlib.import_module("gpupool.rmm")._enable_on(range(_most_devices()))


def _most_devices() -> int:
    """Return how many devices there are at most: how many exactly only the driver can tell."""
    try:
        most = len(os.listdir(_GPUS))
    except OSError:
        most = _MOST_DEVICES
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return most if visible is None else min(most, len(list(filter(None, visible.split(",")))))


def _cupy(name: str) -> None:
    # The limit is a part of a device's memory, and the driver knows how much that is.
    if os.environ.get("CUPY_GPU_MEMORY_LIMIT"):
        _at_the_first_request()
    else:
        _plainly(name)


def _at_the_first_request() -> None:
    """Enable gpupool for CuPy when it first asks for memory, where CuPy itself starts the driver."""
    cupy: Any = importlib.import_module("cupy")
    own = importlib.import_module("gpupool.cupy")
    former = cupy.cuda.get_allocator()

    def allocate(nbytes: int) -> Any:
        if cupy.cuda.get_allocator() is allocate:
            # What `disable` brings back.
            cupy.cuda.set_allocator(former)
            own.enable()
        return cupy.cuda.get_allocator()(nbytes)

    cupy.cuda.set_allocator(allocate)


_WAYS: dict[str, Callable[[str], None]] = {"cuda_core": _cuda_core, "cupy": _cupy, "numba": _numba, "rmm": _rmm}
