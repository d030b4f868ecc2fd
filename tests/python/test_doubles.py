"""What the ABI doubles refuse. The other tests rely on it: what they don't see refused was not done."""

import pytest
from abi import LIBRARIES
from machines import Machine

# What each line of a platform's code does wrong, and what the double says of it.
WRONG = {
    "cuda": [
        ("driver.cuMemFree_v2(at(4096))", "cuMemFree_v2: 0x1000 is no memory, or no longer"),
        ("driver.cuMemUnmap(at(1 << 30), size(1 << 21))", "cuMemUnmap: 0x40000000 is no mapping, or no longer"),
        ("driver.cuMemRelease(at(7))", "cuMemRelease: 0x7 is no physical memory, or no longer"),
        ("driver.cuEventQuery(at(64))", "cuEventQuery: 0x40 is no event, or no longer"),
        ("driver.cuStreamQuery(at(64))", "cuStreamQuery: 0x40 is no stream, or no longer"),
        ("driver.cuCtxSetCurrent(at(64))", "cuCtxSetCurrent: 0x40 is no context"),
        (
            "event = made('cuEventCreate', 2); driver.cuEventRecord(event, at(one.ptr))",
            "cuEventRecord: a stream of device 1",
        ),
    ],
    "hip": [
        ("driver.hipFree(at(4096))", "hipFree: 0x1000 is no memory, or no longer"),
        ("driver.hipMemUnmap(at(1 << 30), size(1 << 21))", "hipMemUnmap: 0x40000000 is no mapping, or no longer"),
        ("driver.hipMemRelease(at(7))", "hipMemRelease: 0x7 is no physical memory, or no longer"),
        ("driver.hipEventQuery(at(64))", "hipEventQuery: 0x40 is no event, or no longer"),
        ("driver.hipStreamQuery(at(1))", "hipStreamQuery: hipStreamLegacy, which HIP 6.1 does not know"),
        (
            "memory = made('hipMalloc', 64); driver.hipSetDevice(1); driver.hipFree(memory)",
            "hipFree: memory of device 0",
        ),
        (
            "event = made('hipEventCreateWithFlags', 2); driver.hipEventRecord(event, at(one.ptr))",
            "hipEventRecord: a stream of device 1",
        ),
    ],
}

PRELUDE = """
at, size = ctypes.c_void_p, ctypes.c_size_t

def made(function, *arguments):
    place = ctypes.c_void_p()
    assert getattr(driver, function)(ctypes.byref(place), *arguments) == 0
    return place

one = gpupool.Stream(1)
scope = gpupool.stream(gpupool.Stream(0))
scope.__enter__()
"""


@pytest.mark.parametrize(
    ("platform", "code", "said"), [(platform, *wrong) for platform, all_ in WRONG.items() for wrong in all_]
)
def test_a_driver_aborts_at_a_call_that_cannot_be_right(tmp_path, run_bare_python, platform, code, said):
    machine = Machine(platform, tmp_path, run_bare_python)
    machine.build()
    done = machine.start(PRELUDE + code, FAKE_VMM="1")
    assert done.returncode == -6
    assert done.stderr.startswith(f"double: {said}")


def test_cudss_aborts_at_a_handler_that_cannot_be_used(tmp_path, run_bare_python):
    machine = Machine("cuda", tmp_path, run_bare_python)
    machine.build()
    machine.install("cudss")
    own = "library = ctypes.CDLL(gpupool.cudss.path); handle = at(gpupool.cudss.handle())\n"
    set_handler = "library.cudssSetDeviceMemHandler(handle, at(gpupool.c_api.handler)); "
    for code, said in [
        (set_handler * 2, "a second handler, with the first still there"),
        ("library.cudssSetDeviceMemHandler(handle, (ctypes.c_char * 88)())", "no whole handler"),
    ]:
        done = machine.start(PRELUDE + own + code)
        assert done.returncode == -6
        assert done.stderr.startswith(f"double: cudssSetDeviceMemHandler: {said}")


@pytest.mark.parametrize("name", ["cudnn", "miopen"])
def test_a_library_aborts_at_a_handle_that_cannot_be_used(tmp_path, run_bare_python, name):
    library = LIBRARIES[name]
    set_stream = library.symbols["SET_STREAM"]
    machine = Machine("cuda" if name == "cudnn" else "hip", tmp_path, run_bare_python)
    machine.build()
    machine.install(name)
    for code, said in [
        (f"library.{library.destroy}(handle); library.{library.destroy}(handle)", f"{library.destroy}: "),
        (f"library.{library.destroy}(handle); library.{set_stream}(handle, at(0))", f"{set_stream}: "),
        (f"library.{set_stream}(handle, at(one.ptr))", f"{set_stream}: a stream of device 1 on a handle of device 0"),
        (f"library.{set_stream}(handle, at(4096))", f"{set_stream}: 0x1000 is no stream, or no longer"),
        (
            f"gpupool.stream(one).__enter__(); library.{library.destroy}(handle)",
            f"{library.destroy}: a handle of device 0 with device 1 current",
        ),
    ]:
        own = f"pool = gpupool.{name}; library = ctypes.CDLL(pool.path); handle = at(pool.handle(device=0))\n"
        done = machine.start(PRELUDE + own + code)
        assert done.returncode == -6
        assert done.stderr.startswith(f"double: {said}")
