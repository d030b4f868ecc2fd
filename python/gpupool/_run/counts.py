"""The counts of a device that only gpupool's table of C functions tells, and the times of pinned memory."""

import ctypes
from typing import NamedTuple

from gpupool import _native

# The places of functions in the table of gpupool.h, after its version and its size.
_DEVICE_STATS, _PINNED_TIMES = 30, 46
_KINDS = 3


class _Stat(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("current", "peak", "allocated", "freed"))


class DeviceStats(ctypes.Structure):
    """``gpupool_device_stats``."""

    _fields_ = (
        ("size", ctypes.c_uint64),
        *(
            (name, _Stat * _KINDS)
            for name in (
                "allocation",
                "segment",
                "active",
                "inactive_split",
                "allocated_bytes",
                "reserved_bytes",
                "active_bytes",
                "inactive_split_bytes",
                "requested_bytes",
            )
        ),
        *((name, ctypes.c_int64) for name in ("alloc_retries", "ooms", "device_allocs", "device_frees")),
    )


class Durations(ctypes.Structure):
    """``gpupool_durations``."""

    _fields_ = (("size", ctypes.c_uint64), *((name, ctypes.c_int64) for name in ("total", "max", "min", "count")))


class Counts(NamedTuple):
    """The counts of a device."""

    peak_requested: int
    retries: int
    failures: int


def of_device(device: int) -> Counts:
    """Return the counts of a device that was used.

    Raises:
        gpupool.Error: The device was not used.
    """
    stats = DeviceStats(size=ctypes.sizeof(DeviceStats))
    _call(_DEVICE_STATS, ctypes.c_int(device), ctypes.byref(stats))
    return Counts(stats.requested_bytes[0].peak, stats.alloc_retries, stats.ooms)


def pinned_seconds() -> float:
    """Return the seconds that it took to make pinned memory and to give it back, of all threads."""
    made, given_back = (Durations(size=ctypes.sizeof(Durations)) for _ in range(2))
    _call(_PINNED_TIMES, ctypes.byref(made), ctypes.byref(given_back))
    return (int(made.total) + int(given_back.total)) / 1e6


def _call(place: int, *arguments: object) -> None:
    point = ctypes.pythonapi.PyCapsule_GetPointer
    point.restype, point.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = (ctypes.c_uint64 * (place + 3)).from_address(point(_native.c_api.capsule, b"gpupool.c_api"))
    if ctypes.CFUNCTYPE(ctypes.c_int)(table[place + 2])(*arguments):
        raise _native.Error("gpupool cannot tell what it has counted")
