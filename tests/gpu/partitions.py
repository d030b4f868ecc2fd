"""Two disjoint parts of a GPU's processors, as green contexts with their streams: by the driver's own functions."""

import ctypes
from typing import NamedTuple

SM_RESOURCE = 1
# The one flag of cuGreenCtxCreate, which drivers before CUDA 13.1 ask for.
DEFAULT_STREAM = 1
NON_BLOCKING = 1
# CUDA_ERROR_CONTEXT_IS_DESTROYED, which driver 580 answers about streams of a green context that is gone, and
# CUDA_ERROR_STREAM_DETACHED, which later ones do.
GONE = (709, 917)

try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    # On machines where the whole folder is skipped.
    driver = None


class Refused(Exception):
    """The driver refused a call."""


def call(name, *arguments):
    """Call a function of the driver, which must not refuse."""
    status = getattr(driver, name)(*arguments)
    if status != 0:
        raise Refused(f"{name} answered {status}")


def made(name, *arguments):
    """Return what a function of the driver makes, by its address."""
    place = ctypes.c_void_p()
    call(name, ctypes.byref(place), *arguments)
    return place.value


class Resource(ctypes.Structure):
    """CUdevResource, which has this size in every version."""

    _fields_ = (
        ("kind", ctypes.c_uint),
        ("_private", ctypes.c_ubyte * 92),
        ("sm_count", ctypes.c_uint),
        ("_rest", ctypes.c_ubyte * 44),
    )


class StreamContexts(NamedTuple):
    """What the driver says of a stream: its context, as cuStreamGetCtx and cuStreamGetCtx_v2 say, and its green one."""

    context: int
    parent: int
    green: int | None


def contexts_of(stream):
    """Ask the driver for the contexts of the stream at this address."""
    parent, green = ctypes.c_void_p(), ctypes.c_void_p()
    at, context = ctypes.c_void_p(stream), ctypes.c_void_p()
    call("cuStreamGetCtx", at, ctypes.byref(context))
    call("cuStreamGetCtx_v2", at, ctypes.byref(parent), ctypes.byref(green))
    return StreamContexts(context.value, parent.value, green.value)


class Part:
    """A part of the processors of a device, and the streams made for it."""

    def __init__(self, resource, device):
        self.sms = resource.sm_count
        self.streams = []
        description = made("cuDevResourceGenerateDesc", ctypes.byref(resource), 1)
        self.green = made("cuGreenCtxCreate", ctypes.c_void_p(description), device, DEFAULT_STREAM)

    def stream(self):
        """Return the address of a new stream of this part."""
        stream = made("cuGreenCtxStreamCreate", ctypes.c_void_p(self.green), NON_BLOCKING, 0)
        self.streams.append(stream)
        return stream

    def destroy(self):
        """Destroy the green context, though not its streams, once the work there is done or not."""
        call("cuGreenCtxDestroy", ctypes.c_void_p(self.green))
        self.green = None

    def destroy_streams(self):
        """Destroy the streams; what was sent to them still runs. Those of a green context that is gone went with it."""
        while self.streams:
            status = driver.cuStreamDestroy_v2(ctypes.c_void_p(self.streams.pop()))
            if status and (self.green or status not in GONE):
                raise Refused(f"cuStreamDestroy_v2 answered {status}")

    def close(self):
        """Wait for the device, and destroy all that is left."""
        call("cuCtxSynchronize")
        self.destroy_streams()
        if self.green:
            self.destroy()


def halves(device=0):
    """Return two disjoint parts of the device of one size, each as near to a half as the driver grants.

    The device's primary context is current, as CuPy makes it.
    """
    whole = Resource()
    call("cuDeviceGetDevResource", device, ctypes.byref(whole), SM_RESOURCE)
    for sms in range(whole.sm_count // 2 // 8 * 8, 0, -8):
        parts, count, rest = (Resource * 2)(), ctypes.c_uint(2), Resource()
        status = driver.cuDevSmResourceSplitByCount(
            parts, ctypes.byref(count), ctypes.byref(whole), ctypes.byref(rest), 0, sms
        )
        if status == 0 and count.value == 2:
            return [Part(part, device) for part in parts]
    raise Refused(f"no two parts of {whole.sm_count} processors; the last split answered {status}, {count.value} parts")
