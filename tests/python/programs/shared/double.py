"""The double of a driver that a program runs on: ways to ask it things, to make its calls fail and to count them."""

import ctypes
import gc
import os
from collections.abc import Callable

import gpupool

MIB = 1 << 20

driver = ctypes.CDLL(os.environ["DOUBLE_DRIVER"])
driver.double_used.restype = ctypes.c_ulong


def fail(what: str | None = None) -> None:
    """Make calls fail from now on, `FUNCTION=STATUS`, or `FUNCTION=STATUS:N` for the first N; None ends that."""
    os.environ.pop("FAKE_FAIL", None)
    if what:
        os.environ["FAKE_FAIL"] = what


def calls(name: str, library: ctypes.CDLL = driver) -> int:
    """Return how often a function was called."""
    return library.double_calls(name.encode())


def set_capture(stream: int, state: int) -> None:
    """Begin a capture of the stream at this address, 1, or end it, 0."""
    driver.double_set_capture(ctypes.c_void_p(stream), state)


def join_capture(stream: int, captured: int) -> None:
    """Make the stream at this address part of the capture of another one."""
    driver.double_join_capture(ctypes.c_void_p(stream), ctypes.c_void_p(captured))


def is_capturing(stream: int) -> bool:
    """Return whether the stream at this address is in a capture that nothing has spoilt."""
    return driver.double_capture(ctypes.c_void_p(stream)) == 1


def live() -> int:
    """Return how many blocks are alive on device 0, once the garbage collector was there."""
    gc.collect()
    return gpupool.memory_stats(0).live_blocks


def error_of(function: Callable[..., object], *arguments: object, **named: object) -> str:
    """Return the type and the text of gpupool's error from a call, or "no error"."""
    try:
        function(*arguments, **named)
    except gpupool.Error as error:
        return f"{type(error).__name__} {error}"
    return "no error"
