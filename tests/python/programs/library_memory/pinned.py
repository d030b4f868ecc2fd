"""The double of cuDSS with gpupool's handler of pinned memory, which an owner sets and the next one does not have."""

import ctypes
import os

import gpupool
from cudss import MIB, Handler, at, library, other, pool, stream
from forking import exit_code_of


def set_pinned(handle, handler):
    """Set a handle's handler of pinned memory, or none."""
    status = library.cudssSetPinnedMemHandler(at(int(handle)), handler)
    assert status == 0, f"cudssSetPinnedMemHandler answered {status}"


def pinned_of(handle):
    """Return a handle's handler of pinned memory, if it has one."""
    handler = Handler()
    status = library.cudssGetPinnedMemHandler(at(int(handle)), ctypes.byref(handler))
    return handler if status == 0 else None


def allocate(handler, nbytes, on=stream):
    """Return the address of memory that the library takes by the handler, None if it gets none."""
    place = at()
    status = handler.allocate(handler.context, ctypes.byref(place), nbytes, at(on.ptr))
    assert (status == 0) == (place.value is not None), f"status {status} with the address {place.value}"
    return place.value


def is_gpupools_and_waits_for_the_stream_that_frees():
    with pool.lease(stream) as handle:
        set_pinned(handle, at(gpupool.c_api.pinned_handler))
        handler = pinned_of(handle)
        assert handler.name == b"gpupool", f"the handler is called {handler.name}"
        address = allocate(handler, 3 * MIB)
        ctypes.memset(address, 7, 3 * MIB)
        stats = gpupool.pinned_stats()
        assert (stats.requested_bytes, stats.live_blocks) == (3 * MIB, 1), f"it is other memory: {stats}"
        assert gpupool.memory_stats().live_bytes == 0, "it is the device's memory"
        status = handler.free(handler.context, at(address), 3 * MIB, at(other.ptr))
        assert status == 0, f"the memory could not be freed: {status}"
        assert gpupool.pinned_stats().waiting_blocks == 1, "it does not wait for the stream that freed it"
        assert handler.free(handler.context, at(address), 3 * MIB, at(other.ptr)) != 0, "it was freed twice"
        assert handler.free(handler.context, None, 0, at(other.ptr)) == 0, "no memory cannot be freed"
        gpupool.set_pinned_limit(MIB)
        gpupool.empty_cache()
        assert allocate(handler, 300 * MIB) is None, "there is memory beyond the limit"
        gpupool.set_pinned_limit(None)
    with pool.lease(stream) as handle:
        assert pinned_of(handle) is None, "what the last owner set is there"


def is_nothing_in_a_forked_child():
    with pool.lease(stream) as handle:
        set_pinned(handle, at(gpupool.c_api.pinned_handler))
        handler = pinned_of(handle)
        address, on = allocate(handler, MIB), at(stream.ptr)
        child = os.fork()
        if child == 0:
            place = at()
            refused = handler.allocate(handler.context, ctypes.byref(place), MIB, on) != 0
            refused = refused and handler.free(handler.context, at(address), MIB, on) != 0
            os._exit(0 if refused else 1)
        assert exit_code_of(child) == 0, "a child used its parent's memory"
        assert handler.free(handler.context, at(address), MIB, on) == 0, "the memory could not be freed"
