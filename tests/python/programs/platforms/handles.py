"""Handles of a library: whose they are, of which device, and which stream they are on."""

import sys

import gpupool
from double import error_of, fail, is_capturing, set_capture
from library_double import LibraryDouble
from waiting import in_thread


def threads_have_one_each_and_hand_it_over(name, platform):
    library = LibraryDouble(name)
    pool, stream = library.pool, gpupool.Stream(0)
    mine = pool.handle(stream)
    theirs = in_thread(pool.handle, stream)
    assert mine != theirs, "two threads have the same handle"
    assert in_thread(pool.handle, stream) == theirs, "an ended thread's handle was not handed over"
    assert pool.handle(stream) == mine, "the thread's own handle changed"
    stats = pool.stats()
    assert (stats.created, stats.hand_overs, library.created) == (2, 1, 2), f"created or handed over otherwise: {stats}"
    assert (pool.trim(), library.destroyed) == (1, 1), "trim did not destroy the idle handle, and no other"
    assert pool.handle(stream) == mine, "trim took the thread's own handle"
    assert gpupool.runtime() == platform, "another platform was chosen"
    version = (1, 2, 3) if library.told.tells_version else None
    assert pool.version == version, f"the library's version is told as {pool.version}"


def each_device_has_its_own(name):
    library = LibraryDouble(name)
    pool, stream = library.pool, gpupool.Stream(1)
    zero, one = pool.handle(device=0), pool.handle(device=1)
    assert zero != one, "two devices have the same handle"
    on_stream = pool.handle(stream)
    assert (on_stream != one) == library.told.by_stream, "the handle of a stream is not that of its device, or is"
    assert (pool.handle(device=0), pool.handle(device=1)) == (zero, one), "asked for again, a device has another handle"
    assert gpupool.current_device() == 0, "asking for a handle changed the current device"
    with gpupool.stream(stream):
        assert gpupool.current_device() == 1, "a stream's scope did not make its device current"
        assert pool.handle() == on_stream, "the scope's stream is not that of the handle"
    assert gpupool.current_device() == 0, "the scope's device stayed current"
    assert (pool.warm(2, device=1), pool.trim(1)) == (2, 2), "warm and trim were not of device 1"
    assert gpupool.current_device() == 0, "warm or trim changed the current device"


def the_stream_is_set_on_every_checkout(name, legacy):
    library = LibraryDouble(name)
    pool = library.pool
    first, second, other = gpupool.Stream(0), gpupool.Stream(0), gpupool.Stream(1)
    for stream in (first, second, first):
        assert library.stream_of(pool.handle(stream)) == stream.ptr, "a handle is not on the stream asked for"
    handle = pool.handle(first)
    with gpupool.stream(first):
        library.set_stream(handle, second.ptr)
    assert library.stream_of(pool.handle(first)) == first.ptr, "a stream set behind the pool's back stayed"
    assert library.stream_of(pool.handle(other)) == other.ptr, "the handle of device 1 is not on its stream"
    defaults = [library.stream_of(pool.handle(default, device=1)) for default in (2, 1, 0)]
    assert defaults == [2, int(legacy), 0], f"default streams reached the library as {defaults}"
    assert library.stream_of(pool.handle(device=1)) == 0, "without a stream it is not the default one"
    assert in_thread(lambda: library.stream_of(pool.handle(second))) == second.ptr, (
        "in another thread the stream is not set"
    )


def a_stream_that_is_refused_is_told(name, path):
    library = LibraryDouble(name)
    function, stream = library.told.symbols["SET_STREAM"], gpupool.Stream(0)
    fail(f"{function}=3")
    error = error_of(library.pool.handle, stream)
    assert f"{name}: {function} failed with " in error, f"the function is not named: {error}"
    assert f"(3) on device 0, library {path}" in error, f"the status, the device or the file is not named: {error}"
    fail()
    assert library.stream_of(library.pool.handle(stream)) == stream.ptr, "after a refusal the stream is not set"


def a_stream_of_another_device_is_refused():
    stream = gpupool.Stream(1)
    pool = gpupool.HandlePool("own", lambda: 1, lambda handle: None)
    error = error_of(pool.handle, stream, device=0)
    assert "belongs to device 1, not to device 0" in error, f"the devices are not named: {error}"
    error = error_of(pool.handle, device=2)
    expected = "InvalidValue there is no device 2: this process sees 2, numbered from 0"
    assert error == expected, f"a device that is not there: {error}"
    assert (pool.handle(stream.ptr), pool.stats(1).created) == (1, 1), "the stream's address did not lead to device 1"


def a_capture_survives_a_first_handle(name, trimmed_during, trimmed_after):
    pool, stream = LibraryDouble(name).pool, gpupool.Stream()
    in_thread(pool.handle)
    set_capture(stream.ptr, 1)
    pool.warm(1)
    pool.handle(stream)
    gpupool.empty(1 << 20, stream)
    assert is_capturing(stream.ptr), "making a handle spoilt the capture"
    in_thread(pool.handle)
    assert pool.trim() == int(trimmed_during), "during a capture trim destroyed other handles than it may"
    set_capture(stream.ptr, 0)
    assert pool.trim() == int(trimmed_after), "after a capture trim destroyed other handles than are left"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
