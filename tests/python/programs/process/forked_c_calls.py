"""Every function of the C table returns at once in a forked child: with a status, or with what needs no lock."""

import ctypes
import os
import re
import threading

import gpupool
from c_table import addresses
from forking import in_child

FORKED = 4
# Read once, not at each of the calls.
TABLE = addresses()
# The simulated library's number.
SIMULATED = 7
# Pools and checkpoints need handles of their own kind.
OF_POOLS = re.compile("pool_(?!reserve_range)|checkpoint_|ticket")
PAGE = 2 << 20
PAGES = (ctypes.c_uint32 * 2)(0, 1)


def function(name: str, restype: type = ctypes.c_int) -> ctypes._CFuncPtr:
    """Return a function of the table, which takes what it is given."""
    return ctypes.CFUNCTYPE(restype)(TABLE[name])


class Struct(ctypes.Structure):
    """The beginning and the room of any struct that says its size."""

    _fields_ = (("size", ctypes.c_uint64), ("room", ctypes.c_uint64 * 199))


def calls(address: int, pool: ctypes.c_void_p, ranged: ctypes.c_void_p) -> dict[str, tuple]:
    """Return the arguments of each function that returns a status."""
    struct, place, none = ctypes.byref(Struct(size=1600)), ctypes.byref(ctypes.c_uint64()), None
    pointer = ctypes.c_void_p(address)
    callback = ctypes.cast(function("last_error"), ctypes.c_void_p)
    return {
        "allocate": (ctypes.c_uint64(1), 0, none, place),
        "deallocate": (pointer,),
        "record_stream": (pointer, 0, none),
        "find_block": (pointer, struct),
        "empty_cache": (-1, none),
        "get_per_process_memory_fraction": (0, place),
        "set_per_process_memory_fraction": (0, ctypes.c_double(0.5)),
        "largest_block": (0, place),
        "enable_peer_access": (0, 1),
        "on_oom": (callback, none),
        "remove_oom_callback": (callback, none),
        "device_stats": (0, struct),
        "reset_peak_stats": (0,),
        "snapshot": (-1, none, struct),
        "record": (none,),
        "visit_stacks": (none, callback),
        "observe": (none, none),
        "declare_lasting": (0, none),
        "expect_captures": (0,),
        "end_expecting_captures": (0,),
        "allocate_pinned": (ctypes.c_uint64(1), -1, place),
        "warm_pinned": (ctypes.c_uint64(1), 0, 0),
        "empty_pinned_cache": (none,),
        "set_pinned_limit": (ctypes.c_uint64(1),),
        "pinned_stats": (-1, struct),
        "reset_peak_pinned_stats": (-1,),
        "pinned_times": (struct, struct),
        "pinned_snapshot": (struct,),
        "sleep_device": (0, 1, none),
        "wake_device": (0, none),
        "share": (pointer, 0, none, 0, place, place, place),
        "attach": (pointer, ctypes.c_uint64(0), 0, none, place, place),
        "attached_record_stream": (none, 0, none),
        "detach": (none, 0, none),
        "deallocate_on": (pointer, 0, none),
        "scope_leave": (ctypes.c_uint64(1),),
        "synchronize": (0, none),
        "allocate_at": (pointer, ctypes.c_uint64(1), 0, none),
        "handle": (SIMULATED, 0, none, place),
        "lease": (SIMULATED, 0, none, ctypes.c_uint64(0), struct),
        "lease_release": (struct,),
        "lease_discard": (struct,),
        "library_is_available": (SIMULATED, place),
        "handle_stats": (SIMULATED, -1, struct),
        "reset_peak_handle_stats": (SIMULATED, -1),
        "warm_handles": (SIMULATED, 0, ctypes.c_uint64(1), 0, place),
        "trim_handles": (SIMULATED, -1, place),
        "set_handle_limit": (SIMULATED, ctypes.c_uint64(1)),
        "pool_reserve_range": (pool, ctypes.c_uint64(PAGE), ctypes.c_uint64(PAGE), place, place),
        "range_commit": (ranged, PAGES, ctypes.c_uint64(2), 0, none, none, -1),
        "range_decommit": (ranged, PAGES, ctypes.c_uint64(2), 0, none),
        "range_pin": (ranged, PAGES, ctypes.c_uint64(2), 0, none, place),
        "range_unpin": (ranged, PAGES, ctypes.c_uint64(2), 0, none),
        "range_prepare": (ranged, ctypes.c_uint64(1)),
        "range_bytes": (ranged, place, none),
        "range_on_discard": (ranged, callback, none),
        "range_release": (ranged, -1, none),
        "range_drop": (ranged,),
        "set_neighbour": (0, none, ctypes.c_uint64(0), ctypes.c_uint64(0), 0),
        "available_memory": (0, place),
        "claim": (0, ctypes.c_uint64(1), ctypes.c_uint64(0), place),
        "claim_release": (none,),
        "feed_allocate": (none, 0, ctypes.c_uint64(1), place),
        "feed_deallocate": (pointer,),
    }


def make_range() -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    """Return a pool, and a range of it of 64 pages."""
    options = ctypes.byref(Struct(size=1600))
    pool, ranged, address = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert function("pool_create")(0, options, ctypes.byref(pool)) == 0
    size = ctypes.c_uint64(64 * PAGE)
    reserve = function("pool_reserve_range")
    assert reserve(pool, size, ctypes.c_uint64(PAGE), ctypes.byref(ranged), ctypes.byref(address)) == 0
    return pool, ranged


def child(handles: tuple[ctypes.c_void_p, ctypes.c_void_p], paged: int, *others: int) -> None:
    for address in (paged, *others):
        for name, arguments in calls(address, *handles).items():
            status = function(name)(*arguments)
            assert status == FORKED, f"{name} returned {status}"
            assert b"spawn" in function("last_error", ctypes.c_char_p)(), f"{name} does not say what to do"
    assert function("owns")(ctypes.c_void_p(paged)) == 1, "the parent's memory is not known"


def main() -> None:
    names = {name for name in TABLE if not OF_POOLS.match(name)}
    plain = {"malloc", "free", "cupy_malloc", "cupy_free", "handler_alloc", "handler_free", "last_error", "owns"}
    handles = make_range()
    tried = calls(0, *handles)
    assert names == plain | tried.keys(), "a function of the table is not tried"
    buffer = gpupool.empty(1 << 20)
    own = gpupool.MemPool(segments=True)
    with gpupool.use_mem_pool(own):
        segment = gpupool.empty(1 << 20)
    pinned, registered = gpupool.empty_pinned(1 << 20), gpupool.empty_pinned(1 << 28)
    blocks = buffer.ptr, segment.ptr, pinned.ptr, registered.ptr
    gpupool.record_memory_history()
    ends, busy = threading.Event(), threading.Barrier(2)

    def work() -> None:
        busy.wait()
        while not ends.is_set():
            # Holds the locks that a fork may find held.
            gpupool.empty(1 << 20)
            gpupool.empty_pinned(1 << 20)
            gpupool.memory_snapshot()
            for name in ("range_commit", "range_pin", "range_unpin", "range_decommit"):
                assert function(name)(*tried[name]) == 0, function("last_error", ctypes.c_char_p)()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    busy.wait()
    for _ in range(5):
        in_child(lambda: child(handles, *blocks))
    ends.set()
    worker.join()
    assert buffer.nbytes == segment.nbytes == pinned.nbytes == 1 << 20, "the parent's buffers changed"
    assert function("range_release")(*tried["range_release"]) == 0, "the parent's range changed"
    os._exit(0)
