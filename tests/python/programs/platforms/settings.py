"""What an owner set of a handle is gone when the next one has it."""

import ctypes
import logging
import sys

import gpupool
from double import calls, error_of, fail, set_capture
from library_double import LibraryDouble
from waiting import in_thread

at = ctypes.c_void_p


def all_are_set_back(name):
    library = LibraryDouble(name)
    pool, settings = library.pool, library.told.settings
    stream, other = gpupool.Stream(0), gpupool.Stream(0)
    with pool.lease(stream) as first:
        handle = int(first)
        assert library.changed(handle) is None, f"a new handle has another {library.changed(handle)}"

    def end_with_all_set(lease):
        for setting in settings:
            assert library.changed(lease) is None, f"{library.changed(lease)} was set and is not set back"
            library.set(lease, setting)
            assert library.changed(lease) == setting.set, f"{setting.set} sets nothing"
            lease.release()
            lease = pool.lease(stream)
            assert int(lease) == handle, "another handle was lent"
        for setting in settings:
            library.set(lease, setting)
        lease.release()

    # From a lease to the next, on the same stream and on another.
    end_with_all_set(pool.lease(stream))
    with pool.lease(other) as second:
        assert int(second) == handle, "another handle was lent"
        assert library.changed(handle) is None, f"{library.changed(handle)} is left on another stream"
        for setting in settings:
            library.set(handle, setting)

    # From a lease to a thread, and from a thread to the next.
    def have():
        own = pool.handle(stream)
        assert own == handle, "a thread got another handle"
        assert library.changed(own) is None, f"{library.changed(own)} is left in another thread"
        for setting in settings:
            library.set(own, setting)

    in_thread(have)
    in_thread(have)


def a_version_without_them_is_used_as_it_is(name):
    pool = LibraryDouble(name).pool
    stream = gpupool.Stream(0)
    handles = {int(pool.lease(stream)) for _ in range(3)}
    assert len(handles) == 1, "another handle was lent"


def what_is_as_it_was_is_only_asked_for(name):
    library = LibraryDouble(name)
    stream = gpupool.Stream(0)
    for _ in range(4):
        library.pool.lease(stream).release()
    asked = {setting.get: calls(setting.get, library.file) for setting in library.told.settings}
    assert set(asked.values()) == {3}, f"of three hand-overs, settings were asked for so often: {asked}"
    made = [setting.set for setting in library.told.settings if calls(setting.set, library.file)]
    assert not made, f"set though nothing was to be set back: {made}"


def a_refusal_is_told_and_loses_no_handle(name, function):
    library = LibraryDouble(name)
    pool, stream = library.pool, gpupool.Stream(0)
    pool.lease(stream).release()
    fail(f"{function}=3")
    for ask in (pool.lease, pool.handle):
        error = error_of(ask, stream)
        assert f"{name}: {function} failed with " in error, f"the function is not named: {error}"
    fail()
    pool.lease(stream).release()
    stats = pool.stats()
    assert (stats.failures, stats.created, stats.idle) == (2, 1, 1), f"a refusal lost a handle: {stats}"


def the_library_s_own_workspace_comes_back():
    """Where gpupool gives none."""
    library = LibraryDouble("cublas")
    stream = gpupool.Stream(0)
    with library.pool.lease(stream) as lease:
        function = library.file.cublasSetWorkspace_v2
        assert function(at(int(lease)), at(0), ctypes.c_size_t(0)) == 0, "the double refused a workspace"
        buffer = gpupool.empty(4 << 20, stream)
        assert library.workspace_of(lease) == 0, "the handle has a workspace"
        assert function(at(int(lease)), at(buffer.ptr), ctypes.c_size_t(4 << 20)) == 0, "the double refused it"
        assert library.workspace_of(lease) == buffer.ptr, "the handle does not have the owner's workspace"
    with library.pool.lease(stream) as lease:
        assert library.workspace_of(lease) == 0, "the next owner has the last one's workspace"
        assert library.stream_of(lease) == stream.ptr, "the stream is not set"


def a_refused_creation_leaves_nothing():
    library, captured = LibraryDouble("cudss"), gpupool.Stream(0)
    fail("cudssCreate=5")
    error_of(library.pool.handle)
    assert library.file.double_handles() == 0, "a creation that was refused left a handle"
    # To destroy it waits for the device, which would spoil a capture.
    set_capture(captured.ptr, 1)
    error_of(library.pool.handle)
    assert library.destroyed == 1, "what was left was destroyed in a capture"
    set_capture(captured.ptr, 0)
    fail()
    library.pool.handle()


class Owner:
    """Sets handlers of memory of cuDSS's, and has memory of them."""

    def __init__(self, stream):
        self.library = LibraryDouble("cudss")
        self.stream = stream

    def take_pinned(self, handle):
        function = self.library.file.cudssSetPinnedMemHandler
        assert function(at(int(handle)), at(gpupool.c_api.handler)) == 0, "the double refused a handler"
        self.library.file.double_pin(at(int(handle)), 1)

    def take_device(self, handle):
        function = self.library.file.cudssSetDeviceMemHandler
        assert function(at(int(handle)), at(gpupool.c_api.handler)) == 0, "the double refused a handler"
        place = at()
        allocate = self.library.file.double_allocate
        assert allocate(at(int(handle)), ctypes.byref(place), ctypes.c_size_t(1 << 20)) == 0, "no memory"


def a_handler_that_is_in_use_ends_the_handle(what, limit):
    """Its next owner gets another one and no error, also at the limit and beside idle handles; a warning says so."""
    logging.basicConfig(stream=sys.stdout)
    stream, other = gpupool.Stream(0), gpupool.Stream(0)
    owner = Owner(stream)
    pool = owner.library.pool
    pool.limit = int(limit) or None
    for number, ask in enumerate([lambda: pool.lease(stream), lambda: pool.lease(other)], 1):
        with pool.lease(stream) as lease:
            given_up = int(lease)
            getattr(owner, f"take_{what}")(lease)
        with ask() as lease:
            assert int(lease) != given_up, "a handle with memory of its last owner's was lent"
            assert owner.library.changed(lease) is None, f"the handle has a handler of {owner.library.changed(lease)}"
        stats = pool.stats()
        assert (stats.discarded, stats.idle, stats.failures) == (number, 1, 0), f"given up {number}: {stats}"
    with pool.lease(stream) as lease:
        given_up = int(lease)
        getattr(owner, f"take_{what}")(lease)
    assert in_thread(pool.handle, stream) != given_up, "a thread got it"
    assert pool.stats().discarded == 3, f"three were given up: {pool.stats()}"


def a_handler_that_is_not_in_use_is_taken_off():
    stream = gpupool.Stream(0)
    owner = Owner(stream)
    pool = owner.library.pool
    with pool.lease(stream) as lease:
        handle = int(lease)
        owner.take_pinned(lease)
        owner.library.file.double_pin(at(handle), -1)
    with pool.lease(stream) as lease:
        assert int(lease) == handle, "another handle was lent"
        assert owner.library.changed(lease) is None, f"the handle has a handler of {owner.library.changed(lease)}"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
