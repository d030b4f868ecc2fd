"""CUPTI, NVIDIA's own profiling library, receives gpupool's ranges: each within those that it is in, with its bytes."""

import ctypes
import os

import gpupool

Pointer, u16, u32, i32 = ctypes.c_void_p, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_int32
NVTX = 5  # CUPTI_CB_DOMAIN_NVTX


class Data(ctypes.Structure):
    """CUpti_NvtxData."""

    _fields_ = (("function", ctypes.c_char_p), ("parameters", Pointer), ("result", Pointer))


class Attributes(ctypes.Structure):
    """nvtxEventAttributes_v2."""

    _fields_ = (
        ("version", u16),
        ("size", u16),
        ("category", u32),
        ("color_type", i32),
        ("color", u32),
        ("payload_type", i32),
        ("reserved", i32),
        ("payload", ctypes.c_uint64),
        ("message_type", i32),
        ("message", ctypes.c_char_p),
    )


class Push(ctypes.Structure):
    """nvtxDomainRangePushEx_params."""

    _fields_ = (("domain", Pointer), ("attributes", ctypes.POINTER(Attributes)))


# The names of the ranges that are open, and each range with how many it was in, its name and its payload.
open_ranges, told = [], []
# What lives until the interpreter lets it go.
kept = []


@ctypes.CFUNCTYPE(None, Pointer, ctypes.c_int, u32, Pointer)
def callback(user, domain, function, data):
    data = ctypes.cast(data, ctypes.POINTER(Data)).contents
    if b"RangePush" in data.function:
        attributes = ctypes.cast(data.parameters, ctypes.POINTER(Push)).contents.attributes.contents
        name = attributes.message.decode()
        told.append((len(open_ranges), name, attributes.payload))
        open_ranges.append(name)
    elif b"RangePop" in data.function:
        open_ranges.pop()


def main():
    cupti, subscriber = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"]), Pointer()
    stream = gpupool.Stream()
    status = cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None)
    assert status == 0, f"cuptiSubscribe answered {status}"
    status = cupti.cuptiEnableDomain(1, subscriber, NVTX)
    assert status == 0, f"cuptiEnableDomain answered {status}"
    gpupool.cublas.handle(stream)
    kept.extend([stream, gpupool.empty(40 << 20, stream)])
    assert open_ranges == [], f"these ranges did not end: {open_ranges}"
    for expected in [
        (0, "create cublas handle", 0),
        (1, "load cublas", 0),
        (0, "grow memory pool", 40 << 20),
    ]:
        assert expected in told, f"CUPTI was not told of {expected}, but of {told}"


if __name__ == "__main__":
    main()
