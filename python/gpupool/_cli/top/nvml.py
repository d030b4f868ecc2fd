"""The memory of NVIDIA's devices as NVML counts it, for which a process needs no context on them."""

import ctypes

_SUCCESS = 0


class _Memory(ctypes.Structure):
    """The struct of ``nvmlDeviceGetMemoryInfo_v2``, in which what the driver keeps for itself is no part of `used`."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


# Its size, and above that its number.
_VERSION = ctypes.sizeof(_Memory) | 2 << 24


class Nvml:
    """The library that the driver brings, or nothing, which knows of no device."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() == _SUCCESS:
                self._library = library
        except (OSError, AttributeError):
            # There is none, or it is another library.
            pass

    def memory(self, uuid: str) -> tuple[int, int] | None:
        """Return the used and the free bytes of a device or of a MIG instance, by its UUID; None if it does not tell.

        Some devices have no memory of their own, and tell nothing.
        """
        if self._library is None:
            return None
        device = ctypes.c_void_p()
        memory = _Memory(version=_VERSION)
        try:
            if self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)) != _SUCCESS:
                return None
            if self._library.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(memory)) != _SUCCESS:
                return None
        except AttributeError:
            return None
        return memory.used, memory.free
