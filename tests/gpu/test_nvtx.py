"""What NVIDIA's own profiling library, CUPTI, receives of gpupool's ranges."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

CODE = """
import ctypes, os
import gpupool

Pointer, u16, u32, i32 = ctypes.c_void_p, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_int32

class Data(ctypes.Structure):
    "CUpti_NvtxData"
    _fields_ = [("function", ctypes.c_char_p), ("parameters", Pointer), ("result", Pointer)]

class Attributes(ctypes.Structure):
    "nvtxEventAttributes_v2"
    _fields_ = [("version", u16), ("size", u16), ("category", u32), ("color_type", i32), ("color", u32),
                ("payload_type", i32), ("reserved", i32), ("payload", ctypes.c_uint64), ("message_type", i32),
                ("message", ctypes.c_char_p)]

class Push(ctypes.Structure):
    "nvtxDomainRangePushEx_params"
    _fields_ = [("domain", Pointer), ("attributes", ctypes.POINTER(Attributes))]

depth, told = 0, []

@ctypes.CFUNCTYPE(None, Pointer, ctypes.c_int, u32, Pointer)
def callback(user, domain, function, data):
    global depth
    data = ctypes.cast(data, ctypes.POINTER(Data)).contents
    if b"RangePush" in data.function:
        range = ctypes.cast(data.parameters, ctypes.POINTER(Push)).contents.attributes.contents
        told.append((depth, range.message.decode(), range.payload))
        depth += 1
    elif b"RangePop" in data.function:
        depth -= 1

NVTX = 5  # CUPTI_CB_DOMAIN_NVTX
cupti, subscriber = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"]), Pointer()
stream = gpupool.Stream()
assert cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None) == 0
assert cupti.cuptiEnableDomain(1, subscriber, NVTX) == 0
gpupool.cublas.handle(stream)
kept = gpupool.empty(40 << 20, stream)
assert depth == 0
print(*(f"{depth} {name} {payload}" for depth, name, payload in told), sep="\\n")
"""


def find_cupti() -> Path | None:
    folders = [Path(sysconfig.get_path("purelib")) / "nvidia", *Path("/usr/local").glob("cuda*")]
    found = (file for folder in folders for file in sorted(folder.rglob("libcupti.so.1?")))
    return next(found, None)


def test_cupti_receives_the_ranges():
    cupti = find_cupti()
    if cupti is None:
        pytest.skip("needs CUPTI: pip install nvidia-cuda-cupti")
    environment = {**os.environ, "GPUPOOL_NVTX": "1", "NVTX_INJECTION64_PATH": str(cupti)}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.stderr, done.returncode) == ("", 0)
    told = done.stdout.splitlines()
    assert "0 create cublas handle 0" in told
    assert "1 load cublas 0" in told
    assert f"0 grow memory pool {40 << 20}" in told
