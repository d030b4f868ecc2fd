"""What ROCm's libraries have in common: where there is no handle, one for each stream, and what is set back."""

import ctypes
import sys
from dataclasses import replace

import gpupool
from double import calls, error_of, fail, is_capturing, set_capture
from errors import assert_says, assert_starts, raised
from library_double import LibraryDouble
from waiting import in_thread


def gives_no_handle(name, start, *said):
    """Check that the error starts so, and says all this; return it."""
    pool = getattr(gpupool, name)
    message = error_of(pool.handle)
    assert_starts(message, start)
    assert_says(message, *said)
    assert pool.available == message.startswith("OutOfMemory"), f"available: {pool.available}"
    return message


def is_missing(name, *said):
    message = gives_no_handle(name, f"LibraryNotFound {name} was not found.", *said)
    assert "CUDA" not in message, f"it is about CUDA: {message}"


def a_version_that_is_refused_is_told():
    fail("miopenGetVersion=7")
    error = raised(gpupool.LibraryError, lambda: gpupool.miopen.version)
    told = error.library, error.function, error.status, error.code, error.path
    expected = "miopen", "miopenGetVersion", "miopenStatusUnknownError", 7, gpupool.miopen.path
    assert told == expected, f"the refusal is told as {told}"


def a_thread_has_a_handle_for_each_of_eight_streams(name):
    library = LibraryDouble(name)
    pool, streams = library.pool, [gpupool.Stream(1) for _ in range(8)]
    handles = [pool.handle(stream) for stream in streams]
    assert len(set(handles)) == 8, "two streams share a handle"
    assert [pool.handle(stream) for stream in streams] == handles, "asked for again, a stream has another handle"
    assert in_thread(pool.handle, streams[0]) not in handles, "two threads share a handle"
    waits = calls("hipStreamWaitEvent")
    assert pool.handle(gpupool.Stream(1)) == handles[0], "one stream more did not get the oldest's handle"
    assert calls("hipStreamWaitEvent") == waits + 1, "it does not wait for the oldest stream's work"
    assert [pool.handle(stream) for stream in streams[1:]] == handles[1:], "the others lost theirs"


def the_version_is_told_once_a_handle_was_made(name):
    pool = getattr(gpupool, name)
    assert pool.available, "it is not available"
    assert pool.version is None, f"without a handle the version is told as {pool.version}"
    with pool.lease():
        assert pool.version == (1, 2, 3), f"the version is told as {pool.version}"


def hand_over(library, change):
    """Let a thread and a lease change a handle one after the other, and yield it as the next owner gets it."""
    stream = gpupool.Stream(0)

    def owner():
        handle = library.pool.handle(stream)
        change(handle)
        return handle

    first = in_thread(owner)
    with library.pool.lease(stream) as lease:
        assert int(lease) == first, "the handle was not handed over"
        yield int(lease)
        change(lease)
    with library.pool.lease(stream) as lease:
        assert int(lease) == first, "the handle was not lent again"
        yield int(lease)


def all_that_can_be_set_is_set_back(name, *others):
    library = LibraryDouble(name)

    def change(handle):
        for setting, other in zip(library.told.settings, others, strict=True):
            library.set(handle, replace(setting, other=int(other)))
        assert library.changed(int(handle)), "nothing was changed"

    for handle in hand_over(library, change):
        assert library.changed(handle) is None, f"{library.changed(handle)} stays for the next owner"


def a_workspace_of_the_owners_is_taken_back():
    library, address = LibraryDouble("hipblas"), ctypes.c_void_p
    given = library.file.double_given_workspace
    given.argtypes, given.restype = [address], ctypes.c_void_p
    mine = ctypes.create_string_buffer(64)

    def change(handle):
        library.file.hipblasSetWorkspace(address(int(handle)), mine, ctypes.c_size_t(64))
        assert given(int(handle)), "nothing was given"

    for handle in hand_over(library, change):
        assert not given(handle), "the next owner's calls would work in the former one's memory"


def the_librarys_own_memory_is_never_set_anew():
    library = LibraryDouble("hipblas")
    for handle in hand_over(library, lambda handle: None):
        assert handle, "there is no handle"
    # The double aborts at a call that would free it, too.
    assert calls("hipblasSetWorkspace", library.file) == 0, "it was set"
    assert calls("rocblas_is_managing_device_memory", library.file) > 0, "the double was not asked"


def an_old_version_keeps_no_handle_from_being_lent():
    library = LibraryDouble("hipblas")
    assert not hasattr(library.file, "hipblasSetWorkspace"), "the version is new"
    for handle in hand_over(library, lambda handle: None):
        assert handle, "there is no handle"


def a_capture_on_a_ninth_stream_stays_whole(name):
    library = LibraryDouble(name)
    pool, streams = library.pool, [gpupool.Stream(0) for _ in range(9)]
    handles = [pool.handle(stream) for stream in streams[:8]]
    set_capture(streams[8].ptr, 1)
    assert pool.handle(streams[8]) not in handles, "a captured stream got a handle that it would have to wait for"
    assert is_capturing(streams[8].ptr), "the capture was spoilt"
    set_capture(streams[8].ptr, 0)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
