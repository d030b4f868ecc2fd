"""cuStateVec and cuTensorNet, which take device memory for the time of a call, on doubles that do so when told."""

import ctypes
import logging
import sys

import gpupool
from double import MIB, calls, error_of
from library_double import LibraryDouble
from waiting import in_thread

at = ctypes.c_void_p
stream, other = gpupool.Stream(0), gpupool.Stream(0)
# The doubles take plain memory of the current device.
scope = gpupool.stream(stream)
scope.__enter__()


class Work(LibraryDouble):
    """What a call does: it takes memory on its stream, and gives it back."""

    def __init__(self, name):
        super().__init__(name)
        self.set_handler = getattr(self.file, f"{name}SetDeviceMemHandler")
        self.get_handler = getattr(self.file, f"{name}GetDeviceMemHandler")

    def take(self, handle, mib=1, on=stream):
        """Return the address of memory that a call takes, None if it gets none."""
        place = at()
        if "SET_STREAM" not in self.told.symbols:
            self.file.double_use(at(int(handle)), at(on.ptr))
        status = self.file.double_allocate(at(int(handle)), ctypes.byref(place), ctypes.c_size_t(mib * MIB))
        assert (status == 0) == (place.value is not None), f"status {status} with the address {place.value}"
        return place.value

    def give_back(self, handle, address, mib=1):
        status = self.file.double_free(at(int(handle)), at(address), ctypes.c_size_t(mib * MIB))
        assert status == 0, f"memory could not be freed: {status}"

    def name_of(self, handle):
        """Return the name of the handle's handler, None where it has none."""
        handler = (ctypes.c_char * 88)()
        status = self.get_handler(at(int(handle)), handler)
        assert status in (0, self.told.no_handler), f"asked for the handler it answers {status}"
        return handler[24:].split(b"\0")[0].decode() if status == 0 else None


NAME = sys.argv[2]
work = Work(NAME)


def live(mem_pool):
    return mem_pool.stats().live_bytes // MIB


def calls_take_from_the_pool_and_use_it_again():
    mine = gpupool.MemPool()
    work.pool.set_mem_pool(mine)
    handle = work.pool.handle(stream)
    assert work.name_of(handle) == "gpupool.MemPool", f"its handler is {work.name_of(handle)}"
    first = work.take(handle, 3)
    assert live(mine) == 3, f"{live(mine)} MiB of 3 are counted"
    work.give_back(handle, first, 3)
    assert work.take(handle, 3) == first, "memory that was freed was not used again"
    work.give_back(handle, first, 3)
    assert live(mine) == 0, "memory that was freed is counted"
    assert calls("cuEventRecord") == 0, "memory waits for its own stream"
    # A stream is another handle's, with memory of the same pool.
    apart = work.pool.handle(other)
    assert apart != handle, "two streams have one handle, whose workspace they would share"
    address = work.take(apart, 1, other)
    assert live(mine) == 1, "another stream's handle takes elsewhere"
    work.give_back(apart, address)


def a_handle_without_a_handler_is_never_told_to_drop_one():
    """No page of cuTensorNet's says what it does then."""
    mine = gpupool.MemPool()
    for _ in range(3):
        in_thread(work.pool.handle, stream)
        work.pool.lease(other).release()
    function = work.set_handler.__name__
    assert calls(function, work.file) == 0, "a handler was set or taken off, though there was none"
    work.pool.set_mem_pool(mine)
    for _ in range(3):
        in_thread(work.pool.handle, stream)
    assert calls(function, work.file) == 1, f"for one handle a handler was set {calls(function, work.file)} times"


def what_an_owner_sets_is_gone_at_the_next():
    def own():
        handle = work.pool.handle(stream)
        assert work.name_of(handle) is None, "what the last owner set is there"
        assert work.set_handler(at(handle), at(gpupool.c_api.handler)) == 0, "the double refused a handler"
        assert work.name_of(handle) == "gpupool", "an owner cannot set a handler"
        return handle

    assert in_thread(own) == in_thread(own), "another handle was lent"
    with work.pool.lease(stream) as lease:
        assert work.name_of(lease) is None, "what the last owner set is there"


def a_handler_that_stays_ends_the_handle():
    """Where the library does not take a handler off, the next owner gets another handle and no error."""
    logging.basicConfig(stream=sys.stdout)
    with work.pool.lease(stream) as lease:
        given_up = int(lease)
        assert work.set_handler(at(given_up), at(gpupool.c_api.handler)) == 0, "the double refused a handler"
    with work.pool.lease(stream) as lease:
        assert int(lease) != given_up, "a handle with its last owner's handler was lent"
        assert work.name_of(lease) is None, "it has a handler"
    stats = work.pool.stats()
    assert (stats.discarded, stats.failures) == (1, 0), f"it is not given up, or told as a failure: {stats}"
    # gpupool's own handler never has to go.
    mine = gpupool.MemPool()
    for mem_pool in (mine, None, mine):
        work.pool.set_mem_pool(mem_pool)
        with work.pool.lease(stream) as lease:
            assert work.name_of(lease) == "gpupool.MemPool", "gpupool's handler was not set, or is gone"


def an_owners_handler_is_told_where_it_cannot_go():
    mine = gpupool.MemPool()
    handle = work.pool.handle(stream)
    assert work.set_handler(at(handle), at(gpupool.c_api.handler)) == 0, "the double refused a handler"
    work.pool.set_mem_pool(mine)
    error = error_of(work.pool.handle, stream)
    assert f"{NAME}SetDeviceMemHandler failed with " in error, f"the call is not named: {error}"
    assert "Another handler of device memory was set for this handle" in error, f"the reason is not told: {error}"


if __name__ == "__main__":
    globals()[sys.argv[1]]()
