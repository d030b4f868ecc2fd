"""Streams of green contexts: their device's, for handles, leases, memory and captures, until their context ends."""

import ctypes
import sys

import gpupool
from double import MIB, driver, error_of, is_capturing, set_capture
from library_double import LibraryDouble
from waiting import in_thread

LAST = gpupool.device_count() - 1
NON_BLOCKING = 1

for function in (driver.double_green_context, driver.double_own_context):
    function.restype = ctypes.c_void_p


def made(function, *arguments):
    """Return what a function of the driver makes."""
    place = ctypes.c_void_p()
    status = driver[function](ctypes.byref(place), *arguments)
    assert status == 0, f"{function} failed with {status}"
    return place


class GreenContext:
    """A green context of a device."""

    def __init__(self, device=LAST):
        self.address = ctypes.c_void_p(driver.double_green_context(device))
        self.converted = made("cuCtxFromGreenCtx", self.address)

    def stream(self):
        """Return the address of a new stream of it."""
        return made("cuGreenCtxStreamCreate", self.address, NON_BLOCKING, 0).value

    def destroy(self):
        assert driver.cuGreenCtxDestroy(self.address) == 0, "cuGreenCtxDestroy failed"


def current_context():
    return made("cuCtxGetCurrent").value


def handles_and_leases_are_its_device_s():
    library = LibraryDouble("cublas")
    pool, parts = library.pool, [GreenContext(), GreenContext()]
    streams = [part.stream() for part in parts]
    plain = pool.handle(device=LAST)
    handles = [pool.handle(stream) for stream in streams]
    assert handles == [plain, plain], "a stream of a green context got another handle than its device's"
    for stream in [*streams, *streams]:
        assert library.stream_of(pool.handle(stream)) == stream, "the handle is not on the stream"
    workspaces = [library.workspace_of(pool.handle(stream)) for stream in streams]
    assert len({0, *workspaces}) == 3, f"the streams have the workspaces {workspaces}"
    with pool.lease(streams[0]) as one, pool.lease(streams[1]) as other:
        assert len({int(one), int(other), plain}) == 3, "leases have one handle"
        on = [library.stream_of(one), library.stream_of(other)]
        assert on == streams, f"leases are on the streams {on}, not {streams}"
    created = library.created
    for stream in streams * 10:
        with pool.lease(stream) as lease:
            assert library.stream_of(lease) == stream, "a lease is not on its stream"
    assert in_thread(pool.handle, streams[1]) != plain, "two threads have one handle"
    assert library.created == created, "a handle was made although there were idle ones"
    assert pool.stats(LAST).created == created, "handles are of another device"
    assert gpupool.current_device() == 0, "the current device changed"


def one_that_is_current_is_left_so():
    library, part = LibraryDouble("cublas"), GreenContext()
    assert driver.cuCtxSetCurrent(part.converted) == 0, "cuCtxSetCurrent failed"
    stream = made("cuStreamCreate", NON_BLOCKING).value
    assert gpupool.current_device() == LAST, "its device is not the current one"
    assert library.stream_of(library.pool.handle(stream)) == stream, "the handle is not on the stream"
    buffer = gpupool.empty(MIB, stream)
    assert buffer.device == LAST, f"memory is of device {buffer.device}"
    buffer.free()
    gpupool.empty_cache()
    assert current_context() == part.converted.value, "another context is current than before"


def memory_is_its_device_s():
    one, other = GreenContext().stream(), GreenContext().stream()
    buffer = gpupool.empty(3 * MIB, one)
    address = buffer.ptr
    assert buffer.device == LAST, f"memory is of device {buffer.device}"
    buffer.free()
    buffer = gpupool.empty(3 * MIB, one)
    assert buffer.ptr == address, "freed memory was not used again on its stream"
    # Used on another stream too, whose work is recorded as it is freed.
    buffer.record_stream(other)
    buffer.free()
    buffers = [gpupool.empty(3 * MIB, stream) for stream in (one, other)]
    assert gpupool.memory_stats(LAST).live_blocks == 2, "memory is counted elsewhere"
    del buffer, buffers
    gpupool.empty_cache()
    assert driver.double_used(LAST) == 0, "memory was not given back"


def a_capture_survives():
    library, stream = LibraryDouble("cublas"), GreenContext().stream()
    pool = gpupool.MemPool(device=LAST)
    set_capture(stream, 1)
    with pool.capture(stream) as memory:
        assert library.stream_of(library.pool.handle(stream)) == stream, "the handle is not on the stream"
        buffer = gpupool.empty(MIB, stream)
        assert (buffer.device, buffer.pool_id) == (LAST, pool.id), "memory of the graph is elsewhere"
        buffer.free()
        assert is_capturing(stream), "the capture was spoilt"
    set_capture(stream, 0)
    memory.reset()


def a_destroyed_one_takes_no_memory_along():
    part, alive = GreenContext(), gpupool.Stream(LAST)
    stream = part.stream()
    kept, used_elsewhere, recorded = (gpupool.empty(3 * MIB, on) for on in (stream, stream, alive))
    gpupool.empty(5 * MIB, stream).free()
    used_elsewhere.record_stream(alive)
    recorded.record_stream(stream)
    part.destroy()
    for buffer in (kept, used_elsewhere, recorded):
        buffer.free()
    for _ in range(2):
        gpupool.empty_cache()
    assert gpupool.memory_stats(LAST).live_blocks == 0, "blocks stayed alive"
    assert driver.double_used(LAST) == 0, "memory of a destroyed green context was not given back"
    assert gpupool.empty(3 * MIB, alive).device == LAST, "no memory is to be had on other streams"


def a_destroyed_one_ends_its_capture():
    part, handles = GreenContext(), LibraryDouble("cublas").pool
    stream, pool = part.stream(), gpupool.MemPool(device=LAST)
    handles.warm(1, device=LAST)
    set_capture(stream, 1)
    with pool.capture(stream) as memory:
        assert handles.trim(LAST) == 0, "a handle was destroyed in a capture"
        part.destroy()
        # Asks about every capture that is known of, since to destroy a handle waits for the device.
        assert handles.trim(LAST) == 1, "the capture has not ended"
    memory.reset()
    assert gpupool.memory_stats(LAST).live_blocks == 0, "blocks stayed alive"


def a_destroyed_one_s_stream_is_refused():
    """On machines with several devices; on others the driver is not asked about a stream whose handle is there."""
    part, pool = GreenContext(), LibraryDouble("cublas").pool
    stream = part.stream()
    pool.handle(stream)
    part.destroy()
    refusals = [
        error_of(function, *arguments) for function, *arguments in ((pool.handle, stream), (gpupool.empty, 1, stream))
    ]
    for refusal in refusals:
        assert refusal.startswith("LibraryError cuda: cuStreamGetCtx failed with "), f"it is refused by {refusal}"
        assert "(917). The stream's context, such as a green context, was destroyed" in refusal, f"no advice: {refusal}"
    assert pool.handle(device=LAST) != 0, "the thread's handle is lost"


def one_of_a_program_s_own_context_is_refused():
    """On machines with several devices."""
    assert driver.cuCtxSetCurrent(ctypes.c_void_p(driver.double_own_context(LAST))) == 0, "cuCtxSetCurrent failed"
    stream = made("cuStreamCreate", NON_BLOCKING).value
    refusal = error_of(gpupool.empty, 1, stream)
    start = f"InvalidValue stream {stream:#x} belongs to a context that is neither the primary context of a device nor "
    assert refusal.startswith(start), f"it is refused by {refusal}"
    assert "12.5" not in refusal, f"another driver would not help: {refusal}"


def an_old_driver_cannot_tell():
    refusal = error_of(gpupool.empty, 1, GreenContext().stream())
    assert "belongs to a context that is neither" in refusal, f"it is refused by {refusal}"
    assert "this driver cannot say of which, one for CUDA 12.5 or later can" in refusal, f"it is refused by {refusal}"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
