"""Handles of a library: whose they are, of which device, on which stream; what cannot be created or destroyed."""

import sys
import threading

import gpupool
from double import calls, error_of, fail, is_capturing, set_capture
from libraries import CUDA_LIBRARIES
from library_double import LibraryDouble
from waiting import in_thread

# What no header has, or not yet.
UNKNOWN = (925, 1_000_000, -1, -(1 << 31), (1 << 31) - 1)
# Destroying a handle waits for the device, which no capture allows; so it does where a thread has one for each stream.
SYNCHRONIZING = ("cublas", "cusolver", "cudss", "cublaslt", "cutensor", "cusparselt", "miopen")

name = sys.argv[2]
library = LibraryDouble(name)
pool, told = library.pool, library.told


def threads_have_one_each_and_hand_it_over():
    stream = gpupool.Stream(0)
    mine = pool.handle(stream)
    theirs = in_thread(pool.handle, stream)
    assert mine != theirs, "two threads have the same handle"
    assert in_thread(pool.handle, stream) == theirs, "an ended thread's handle was not handed over"
    assert pool.handle(stream) == mine, "the thread's own handle changed"
    stats = pool.stats()
    assert (stats.created, stats.hand_overs, library.created) == (2, 1, 2), f"created or handed over otherwise: {stats}"
    assert (pool.trim(), library.destroyed) == (1, 1), "trim did not destroy the idle handle, and no other"
    assert pool.handle(stream) == mine, "trim took the thread's own handle"
    assert (gpupool.runtime() == "cuda") == (name in CUDA_LIBRARIES), "another platform was chosen"
    version = (1, 2, 3) if told.tells_version else None
    assert pool.version == version, f"the library's version is told as {pool.version}"


def each_device_has_its_own():
    stream = gpupool.Stream(1)
    zero, one = pool.handle(device=0), pool.handle(device=1)
    assert zero != one, "two devices have the same handle"
    on_stream = pool.handle(stream)
    assert (on_stream != one) == told.by_stream, "the handle of a stream is not that of its device, or is"
    assert (pool.handle(device=0), pool.handle(device=1)) == (zero, one), "asked for again, a device has another handle"
    assert gpupool.current_device() == 0, "asking for a handle changed the current device"
    with gpupool.stream(stream):
        assert gpupool.current_device() == 1, "a stream's scope did not make its device current"
        assert pool.handle() == on_stream, "the scope's stream is not that of the handle"
    assert gpupool.current_device() == 0, "the scope's device stayed current"
    assert (pool.warm(2, device=1), pool.trim(1)) == (2, 2), "warm and trim were not of device 1"
    assert gpupool.current_device() == 0, "warm or trim changed the current device"


def the_stream_is_set_on_every_checkout():
    first, second, other = gpupool.Stream(0), gpupool.Stream(0), gpupool.Stream(1)
    for stream in (first, second, first):
        assert library.stream_of(pool.handle(stream)) == stream.ptr, "a handle is not on the stream asked for"
    handle = pool.handle(first)
    with gpupool.stream(first):
        library.set_stream(handle, second.ptr)
    assert library.stream_of(pool.handle(first)) == first.ptr, "a stream set behind the pool's back stayed"
    assert library.stream_of(pool.handle(other)) == other.ptr, "the handle of device 1 is not on its stream"
    # HIP has known the legacy default stream as 1 since 6.2 only, and always as 0.
    legacy = int(gpupool.runtime() == "cuda")
    defaults = [library.stream_of(pool.handle(default, device=1)) for default in (2, 1, 0)]
    assert defaults == [2, legacy, 0], f"default streams reached the library as {defaults}"
    assert library.stream_of(pool.handle(device=1)) == 0, "without a stream it is not the default one"
    assert in_thread(lambda: library.stream_of(pool.handle(second))) == second.ptr, (
        "in another thread the stream is not set"
    )


def the_stream_is_asked_for_and_set_only_if_it_differs():
    stream = gpupool.Stream(1)
    for _ in range(10):
        pool.handle(stream)
    functions = told.symbols["SET_STREAM"], told.symbols["GET_STREAM"], told.create
    counts = [calls(function, library.file) for function in functions]
    assert counts == [1, 10, 1], f"set, asked for and created {counts} times"


def a_stream_that_is_refused_is_told():
    function, stream = told.symbols["SET_STREAM"], gpupool.Stream(0)
    fail(f"{function}=3")
    error = error_of(pool.handle, stream)
    assert f"{name}: {function} failed with " in error, f"the function is not named: {error}"
    assert f"(3) on device 0, library {pool.path}" in error, f"the status, the device or the file is not named: {error}"
    fail()
    assert library.stream_of(pool.handle(stream)) == stream.ptr, "after a refusal the stream is not set"


def a_stream_of_another_device_is_refused():
    stream = gpupool.Stream(1)
    error = error_of(pool.handle, stream, device=0)
    assert "belongs to device 1, not to device 0" in error, f"the devices are not named: {error}"
    error = error_of(pool.handle, device=2)
    expected = "InvalidValue there is no device 2: this process sees 2, numbered from 0"
    assert error == expected, f"a device that is not there: {error}"
    pool.handle(stream.ptr)
    assert (pool.stats(0).created, pool.stats(1).created) == (0, 1), "the stream's address did not lead to device 1"


def a_capture_survives_a_first_handle():
    stream = gpupool.Stream()
    in_thread(pool.handle)
    waits = name in SYNCHRONIZING or told.by_stream
    set_capture(stream.ptr, 1)
    pool.warm(1)
    pool.handle(stream)
    gpupool.empty(1 << 20, stream)
    assert is_capturing(stream.ptr), "making a handle spoilt the capture"
    in_thread(pool.handle)
    assert pool.trim() == int(not waits), "during a capture trim destroyed other handles than it may"
    set_capture(stream.ptr, 0)
    assert pool.trim() == int(waits), "after a capture trim destroyed other handles than are left"


def every_status_is_told():
    for code, status in told.statuses.items():
        fail(f"{told.create}={code}")
        error = error_of(pool.handle, device=1)
        said = f"{name}: {told.create} failed with {status} ({code}) on device 1, library {pool.path}"
        if code == told.out_of_memory:
            assert error.startswith(f"OutOfMemory out of memory on device 1: {said}"), f"not out of memory: {error}"
        else:
            assert said in error, f"{status} is told as: {error}"
    unknown = [code for code in UNKNOWN if code not in told.statuses]
    for code in unknown:
        fail(f"{told.create}={code}")
        error = error_of(pool.handle, device=1)
        assert f"{name}: {told.create} failed with " in error, f"{code} is told as: {error}"
        assert str(code) in error, f"the number {code} is not told: {error}"
        assert f" on device 1, library {pool.path}" in error, f"{code} is told as: {error}"
    fail()
    assert pool.handle(device=1) != 0, "no handle after the failures"
    assert gpupool.current_device() == 0, "a failure left device 1 current"
    assert pool.stats().failures == len(told.statuses) + len(unknown), "failures are counted wrongly"


def without_memory_idle_handles_go_first():
    in_thread(pool.handle)
    fail(f"{told.create}={told.out_of_memory}:2")
    assert pool.warm(2) == 1, "the handle was not created once there was memory"
    # And what the creation left that was refused, where it leaves anything.
    destroyed = 1 + told.leaves_unfinished
    counts = pool.stats().destroyed, library.destroyed
    assert counts == (1, destroyed), f"not the idle handle alone was given up for it: {counts}"


def a_discarded_handle_is_nobodys_again_and_destroyed_once():
    def are_destroyed(handles):
        return [library.is_destroyed(handle) for handle in handles]

    leases, gone = library.leased(3)
    for lease in leases:
        lease.discard()
        lease.discard()
    stats = pool.stats(1)
    assert (stats.discarded, stats.idle, stats.leased) == (3, 0, 0), f"three discarded handles are counted as {stats}"
    assert library.destroyed == 0, "discard destroyed a handle at once"
    leases, others = library.leased(2)
    for lease in leases:
        lease.release()
    others += [in_thread(pool.handle, None, 1) for _ in range(4)]
    others.append(pool.handle(device=1))
    assert not set(gone) & set(others), "a discarded handle was given out again"
    assert (pool.stats(1).created, pool.stats(1).discarded) == (5, 3), "released handles were not used again"
    assert are_destroyed(gone) == [False] * 3, "a discarded handle was destroyed before trim"
    # The threads handed the two others on, and the last one keeps its own: one is idle.
    assert [pool.trim(0), pool.trim(1), pool.trim(1)] == [0, 4, 0], "trim destroyed another number of handles"
    assert library.destroyed == 4, "the library was asked to destroy another number of handles"
    assert are_destroyed(gone) == [True] * 3, "trim left a discarded handle"
    assert are_destroyed(others[-1:]) == [False], "trim destroyed the handle of a thread at work"
    stats = pool.stats(1)
    assert (stats.discarded, stats.destroyed, stats.held) == (0, 4, 1), f"after trim the counts are {stats}"


def one_that_cannot_be_destroyed_is_told_and_the_rest_are():
    number, status = next(iter(told.statuses.items()))
    left = []
    for discarded in (4, 3, 0):
        leases, handles = library.leased(4)
        for lease in leases[:discarded]:
            lease.discard()
        for lease in leases[discarded:]:
            lease.release()
        before = library.destroyed
        fail(f"{told.destroy}={number}:{before + 1}")
        error = error_of(pool.trim)
        said = f"LibraryError {name}: {told.destroy} failed with {status} ({number}) on device 1, library "
        assert error.startswith(said), f"the failure is told as: {error}"
        fail()
        left += [handle for handle in handles if not library.is_destroyed(handle)]
        assert pool.trim() == 0, "the handle that could not be destroyed was tried again"
        assert library.destroyed - before == 4, "not every handle was tried once"
        assert sum(map(library.is_destroyed, handles)) == 3, "one failure kept others from being destroyed"
        stats = pool.stats(1)
        assert (stats.discarded, stats.idle) == (0, 0), f"a handle is counted as still there: {stats}"
    assert (stats.failures, stats.created, len(left)) == (3, 12, 3), f"{len(left)} handles are left: {stats}"
    assert not set(left) & set(library.leased(4)[1]), "a handle that could not be destroyed was given out again"


def the_process_ends():
    pool.handle(gpupool.Stream(1))
    is_there, end = threading.Event(), threading.Event()

    def hold():
        pool.handle()
        is_there.set()
        end.wait()

    threading.Thread(target=hold, daemon=True).start()
    is_there.wait()
    in_thread(pool.handle)
    sys.exit(3)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
