"""What HIP does otherwise than CUDA, and how gpupool uses it."""

import ctypes
import os
import sys
from pathlib import Path

import gpupool
from double import MIB, calls, driver, error_of, fail, is_capturing, set_capture
from errors import assert_starts, raised
from forking import assert_refused, exit_code_of
from waiting import in_thread

# What ends with the process.
kept = []


def assert_no_error_is_left():
    error = driver.hipPeekAtLastError()
    assert error == 0, f"HIP's last error, {error}, is left to others"


def current_device():
    """Return HIP's own answer."""
    current = ctypes.c_int()
    assert driver.hipGetDevice(ctypes.byref(current)) == 0, "hipGetDevice failed"
    return current.value


def a_copy_that_is_loaded_is_taken_and_no_other():
    gpupool.runtime()
    assert calls("hipInit") == 1, "the copy that is loaded was not started once"
    assert "libamdhip64.so.8" not in Path("/proc/self/maps").read_text(), "another copy was loaded"


def without_a_device_they_are_simulated():
    assert gpupool.runtime() == "host", f"the runtime is {gpupool.runtime()}"
    assert_no_error_is_left()


def an_error_that_was_told_is_not_left_to_others():
    stream = gpupool.Stream()
    for function, use, status in [
        ("hipMalloc=2", lambda: gpupool.empty(MIB), "hipErrorOutOfMemory (2)"),
        ("hipStreamQuery=719", stream.query, "hipErrorLaunchFailure (719)"),
        ("hipStreamSynchronize=719", stream.synchronize, "hipErrorLaunchFailure (719)"),
        ("hipStreamCreateWithFlags=1", gpupool.Stream, "hipErrorInvalidValue (1)"),
        ("hipSetDevice=101", lambda: gpupool.Stream(1), "hipErrorInvalidDevice (101)"),
    ]:
        fail(function)
        told = error_of(use)
        fail()
        assert told.split(" failed with ")[-1].startswith(status), f"{function} is told as: {told}"
        assert_no_error_is_left()


def work_that_is_under_way_is_no_error():
    stream = gpupool.Stream()
    fail("hipStreamQuery=600,hipEventQuery=600")
    assert not stream.query(), "work under way counts as done"
    assert_no_error_is_left()
    buffer = gpupool.empty(MIB, stream)
    other = gpupool.Stream()
    buffer.record_stream(other)
    del buffer
    assert gpupool.memory_stats().waiting_blocks == 1, "a block in use on another stream does not wait"
    assert_no_error_is_left()
    fail()
    assert stream.query(), "work that is done counts as under way"


def the_current_device_is_the_callers_again():
    driver.hipSetDevice(1)
    stream = gpupool.Stream(0)
    gpupool.empty(MIB, stream)
    gpupool.empty_cache()
    stream.synchronize()
    assert (current_device(), gpupool.current_device()) == (1, 1), "the caller's current device changed"
    assert in_thread(gpupool.current_device) == 0, "another thread's current device is not the first"


def default_streams_are_given_as_every_version_knows_them():
    """Use default streams; the double aborts at hipStreamLegacy, which came with HIP 6.2, and at their device."""
    for stream in (0, 1, 2):
        buffer = gpupool.empty(MIB, stream)
        buffer.record_stream(gpupool.Stream())
        with gpupool.stream(stream):
            gpupool.empty(MIB)
    assert gpupool.current_device() == 0, "the current device changed"


def a_stream_that_is_gone_is_refused():
    stream = gpupool.Stream(1)
    address = stream.ptr
    del stream
    error = error_of(gpupool.empty, 1, address)
    expected = "LibraryError hip: hipStreamGetDevice failed with hipErrorContextIsDestroyed (709)"
    said = f"{expected}. stream is {address:#x}, which is not the address of a stream that is alive"
    assert error.startswith(said), f"it is told as: {error}"
    assert_no_error_is_left()


def a_capture_on_a_blocking_stream_is_seen():
    stream = ctypes.c_void_p()
    gpupool.runtime()
    driver.hipStreamCreateWithFlags(ctypes.byref(stream), 0)
    gpupool.empty(MIB, stream.value).free()
    set_capture(stream.value, 1)
    gpupool.empty_cache()
    assert is_capturing(stream.value), "empty_cache spoilt the capture"
    assert_no_error_is_left()


def a_free_waits_for_no_device():
    """Free what a stream used that may be gone: HIP has no event of a whole device, which is waited for later."""
    other = gpupool.Stream()
    stream = ctypes.c_void_p()
    driver.hipStreamCreateWithFlags(ctypes.byref(stream), 1)
    buffer = gpupool.empty(MIB, other)
    share = buffer.__dlpack__(stream=stream.value)
    driver.hipStreamDestroy(stream)
    before = calls("hipDeviceSynchronize")
    del share, buffer
    found = calls("hipDeviceSynchronize") - before, gpupool.memory_stats().waiting_blocks
    assert found == (0, 1), f"waits for the device, and blocks that wait: {found}"
    gpupool.empty_cache()
    found = calls("hipDeviceSynchronize") - before, gpupool.memory_stats().waiting_blocks
    assert found[0] > 0, "nothing waited for the work of the stream that is gone"
    assert found[1] == 0, "memory is left"


def buffers_tell_other_libraries_where_they_are():
    stream = gpupool.Stream(1)
    buffer = gpupool.empty(MIB, stream)
    # 10 is DLPack's number for ROCm.
    assert buffer.__dlpack_device__() == (10, 1), f"DLPack is told {buffer.__dlpack_device__()}"
    interface = buffer.__cuda_array_interface__
    assert interface["data"] == (buffer.ptr, False), f"the array interface has {interface['data']}"
    other = gpupool.Stream(1)
    for consumer in (None, 0, -1, stream.ptr, other.ptr):
        capsule = str(buffer.__dlpack__(stream=consumer))
        assert "dltensor" in capsule, f"a consumer on stream {consumer} got {capsule}"


def virtual_memory_that_does_not_work_is_not_used(refused):
    fail(f"{refused}=1")
    buffer = gpupool.empty(30 * MIB)
    ctypes.memset(buffer.ptr, 1, buffer.nbytes)
    assert calls("hipMalloc") == 1, "memory came from elsewhere"
    assert calls(refused) > 0, "virtual memory was not tried"
    assert_no_error_is_left()


def virtual_memory_is(used):
    kept.append(gpupool.empty(30 * MIB))
    found = calls("hipMalloc"), calls("hipMemCreate") > 0
    assert found == {"used": (0, True), "unused": (1, False)}[used], f"hipMalloc and hipMemCreate: {found}"


def a_switch_that_is_neither_on_nor_off_is_refused():
    error = raised(gpupool.InvalidValue, gpupool.empty, 1)
    assert_starts(error, 'GPUPOOL_HIP_VIRTUAL_MEMORY="off" is neither 1 (on) nor 0 (off)')


def a_forked_child_is_refused():
    gpupool.empty(MIB)
    child = os.fork()
    if child == 0:
        assert_refused(gpupool.Stream, lambda: gpupool.empty(1))
        os._exit(0)
    assert exit_code_of(child) == 0, "the child failed"


def nothing_is_called_when_the_process_ends():
    """Make calls fail that give memory back, which would be complained of."""
    stream = gpupool.Stream()
    kept.extend([stream, gpupool.empty(30 * MIB, stream)])
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        kept.extend([pool, gpupool.empty(MIB)])
    fail("hipFree=1,hipMemUnmap=1,hipMemRelease=1")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
