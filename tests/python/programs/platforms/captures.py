"""Captures of blocking streams by other code, beside which the legacy default stream must not be used."""

import ctypes
import sys

import gpupool
from double import MIB, driver, error_of, is_capturing, set_capture

LEGACY = (0, 1)


def blocking_stream():
    """Return a blocking stream of other code's on device 0, which lasts as long as the process."""
    create = {"cuda": "cuStreamCreate", "hip": "hipStreamCreateWithFlags"}[gpupool.runtime()]
    stream = ctypes.c_void_p()
    with gpupool.stream(gpupool.Stream(0)):
        assert driver[create](ctypes.byref(stream), 0) == 0, "the double made no stream"
    return stream.value


def assert_no_error_is_left():
    """HIP keeps the last error of a thread until it is asked for."""
    if gpupool.runtime() == "hip":
        assert driver.hipPeekAtLastError() == 0, "HIP's last error is left to others"


def requests_do_not_fail_and_spoil_nothing():
    captured, own = blocking_stream(), gpupool.Stream(0)
    pool, ending = gpupool.MemPool(), gpupool.MemPool()
    with gpupool.use_mem_pool(ending):
        for stream in (0, own):
            gpupool.empty(5 * MIB, stream).free()
    with gpupool.use_mem_pool(pool):
        many = [gpupool.Stream(0) for _ in range(20)]
        small = [gpupool.empty(700, stream) for stream in (*many, 0)]
        recorded = [gpupool.empty(4 * MIB, own) for _ in LEGACY]
        set_capture(captured, 1)
        for buffer, legacy in zip(recorded, LEGACY, strict=True):
            buffer.record_stream(legacy)
        del recorded, buffer
        small.pop().free(0)
        for stream in (own, *LEGACY, many[0]):
            for nbytes in (700, 4 * MIB, 30 * MIB):
                gpupool.empty(nbytes, stream).free(stream)
            gpupool.empty_pinned(1000, stream=stream).record_stream(stream)
        ending.close()
        del ending
        gpupool.empty_cache()
        pool.trim()
        assert is_capturing(captured), "the capture was spoilt"
        assert pool.stats().waiting_blocks >= len(LEGACY), "a block does not wait for the legacy stream any more"
        assert_no_error_is_left()
        set_capture(captured, 0)
        gpupool.empty(MIB, own).free()
        del small
    del pool
    gpupool.empty_cache()
    assert gpupool.memory_stats(0).reserved_bytes == driver.double_used(0) == 0, "memory is left after the capture"
    assert_no_error_is_left()


def what_would_use_the_legacy_stream_is_refused():
    captured, own = blocking_stream(), gpupool.Stream(0)
    buffer = gpupool.empty(1000, own)
    pinned = gpupool.empty_pinned(1000)
    other = gpupool.Stream(1)
    set_capture(captured, 1)
    for name, call in (
        ("fill", lambda: buffer.fill(1, 0)),
        ("copy_from", lambda: buffer.copy_from(pinned, 1)),
        ("copy_to", lambda: buffer.copy_to(bytearray(1000), 0)),
        ("synchronize", gpupool.current_stream(0).synchronize),
        ("query", gpupool.current_stream(0).query),
    ):
        error = error_of(call)
        assert error.startswith("InvalidValue a blocking stream of device 0 is being captured"), f"{name}: {error}"
    assert is_capturing(captured), "the capture was spoilt"
    buffer.fill(1, own)
    own.synchronize()
    # CUDA's stream is of each device, HIP takes those of all together.
    with other:
        error = error_of(gpupool.current_stream(1).query)
    assert error == "no error", error
    set_capture(captured, 0)
    buffer.fill(1, 0)
    assert_no_error_is_left()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
