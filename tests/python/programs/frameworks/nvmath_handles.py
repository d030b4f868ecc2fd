"""Handles that gpupool lends to nvmath: on which stream, with whose memory, and when they are lent again."""

import ctypes
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import gpupool
from double import MIB
from library_double import LibraryDouble
from nvmath.bindings import cudss
from nvmath.linalg.advanced import MatmulOptions
from nvmath.sparse.advanced import DirectSolverOptions
from nvmath.tensor import ContractionOptions

library = LibraryDouble("cudss")
pool, stream = library.pool, gpupool.Stream(0)
scope = gpupool.stream(stream)
scope.__enter__()
# What is lent as the process ends.
lent = []


def has_own_memory(handle):
    """Return whether a handle has a handler of memory; if not, nvmath's is set."""
    return not cudss.set_async_workspace_allocator(handle, 0)


def are_lent_and_taken_back():
    with gpupool.nvmath.options(pool, stream, blocking=True) as options:
        handle = options["handle"]
        expected = DirectSolverOptions(handle=handle, blocking=True)
        assert DirectSolverOptions(**options) == expected, f"the options are {options}"
        assert library.stream_of(handle) == stream.ptr, "the handle is not on the stream"
        assert pool.stats().leased == 1, "the handle is not lent"
    try:
        with gpupool.nvmath.options(pool, stream) as options:
            assert options == {"handle": handle}, f"the options are {options}"
            raise ArithmeticError
    except ArithmeticError:
        stats = pool.stats()
    counts = stats.created, stats.leased, stats.idle, stats.discarded
    assert counts == (1, 0, 1, 0), f"an error in the block kept the handle: {stats}"


def come_with_gpupool_s_memory():
    mine = gpupool.nvmath.MemoryManager(0)
    with gpupool.nvmath.options(gpupool.cublaslt, sm_count_target=4) as options:
        manager = MatmulOptions(**options).allocator
        assert isinstance(manager, gpupool.nvmath.MemoryManager), f"the allocator is {manager!r}"
        assert options["allocator"].device_id == 0, "the allocator is of another device"
        assert options["sm_count_target"] == 4, "an option was lost"
    with gpupool.nvmath.options(gpupool.cublaslt, device=1, allocator=mine) as options:
        assert options["allocator"] is mine, "the program's own allocator was replaced"
    with gpupool.nvmath.options(gpupool.cutensor, stream, blocking="auto") as options:
        chosen = ContractionOptions(**options)
        assert isinstance(chosen.allocator, gpupool.nvmath.MemoryManager), f"the allocator is {chosen.allocator!r}"
        assert not LibraryDouble("cutensor").is_destroyed(chosen.handle), "there is no handle of the library"
        assert gpupool.cutensor.stats().leased == 1, "the handle is not lent"
    with gpupool.nvmath.options(gpupool.cublaslt, device=1) as options:
        assert options["allocator"].device_id == 1, "the allocator is of another device than asked for"


def may_be_lent_as_the_process_ends():
    lent.append(gpupool.nvmath.options(pool, stream))
    assert lent[0].__enter__()["handle"] != 0, "no handle"


def keep_the_pool_s_memory_and_lose_nvmath_s_own():
    with gpupool.nvmath.options(pool, stream) as options:
        assert not has_own_memory(options["handle"]), "the handle has a handler already"
        assert has_own_memory(options["handle"]), "nvmath's handler was not set"
    mine = gpupool.MemPool()
    pool.set_mem_pool(mine)
    with gpupool.nvmath.options(pool, stream) as options:
        handle = ctypes.c_void_p(options["handle"])
        assert has_own_memory(handle.value), "the handle does not take the pool's memory"
        place = ctypes.c_void_p()
        status = library.file.double_allocate(handle, ctypes.byref(place), ctypes.c_size_t(MIB))
        assert status == 0, f"the library's request answered {status}"
        assert mine.stats().live_bytes == MIB, "the library's memory is not the pool's"
        assert library.file.double_free(handle, place, ctypes.c_size_t(MIB)) == 0, "the memory could not be freed"
    assert pool.stats().created == 1, "another handle was made"


def with_a_threading_layer_are_retired(name, layer, expected):
    """Lend a handle with a layer, "none" is no layer, and count how many are not lent again."""
    with gpupool.nvmath.options(getattr(gpupool, name), stream, multithreading_lib=None if layer == "none" else layer):
        pass
    discarded = getattr(gpupool, name).stats().discarded
    assert discarded == int(expected), f"{discarded} handles are discarded, not {expected}"


def are_shared_by_threads():
    turns = threading.Semaphore(2)

    def work(_):
        with turns, gpupool.nvmath.options(pool, gpupool.Stream(0)) as options:
            cudss.set_stream(options["handle"], stream.ptr)
            return options["handle"]

    with ThreadPoolExecutor(16) as executor:
        handles = set(executor.map(work, range(200)))
    # Two work at once; a third may be giving its handle back.
    assert len(handles) <= 3, f"two at once used {len(handles)} handles"
    assert pool.stats().leased == 0, "a handle is lent still"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
