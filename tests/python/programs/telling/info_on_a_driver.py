"""What `gpupool.info()` leaves alone on a driver: contexts, current devices, captures."""

import ctypes
import sys

import gpupool
from double import calls, driver, is_capturing, set_capture


def makes_no_context_and_leaves_the_threads_own():
    before = [(device.free_bytes, device.total_bytes) for device in gpupool.info().devices]
    assert before == [(None, 1 << 30)] * 2, f"before the first use the devices' free and total bytes are {before}"
    found = calls("cuDevicePrimaryCtxRetain"), calls("cuMemAlloc_v2")
    assert found == (0, 0), f"contexts and allocations were made: {found}"
    # Which makes the context of device 1.
    stream = gpupool.Stream(1)
    with gpupool.stream(gpupool.Stream(0)):
        free = [device.free_bytes is not None for device in gpupool.info().devices]
        assert free == [True, True], f"devices in use tell their free bytes: {free}"
        assert gpupool.current_device() == 0, "asking device 1 left it current"
    del stream


def spoils_no_capture():
    stream = gpupool.Stream()
    set_capture(stream.ptr, 1)
    assert gpupool.info().ok, "during a capture something is wrong"
    assert is_capturing(stream.ptr), "the capture was spoilt"


def leaves_hips_current_device():
    for wanted in (0, 1):
        driver.hipSetDevice(wanted)
        gpupool.info()
        current = ctypes.c_int()
        driver.hipGetDevice(ctypes.byref(current))
        assert current.value == wanted, f"device {current.value} is current, not {wanted}"
        assert driver.hipPeekAtLastError() == 0, "HIP's last error is left to others"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
