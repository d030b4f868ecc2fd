"""`c_api.feed`: functions that do what cudaMalloc and cudaFree would, for allocators that keep what they get."""

import contextlib
import ctypes
import gc

import gpupool
import pytest
from gpupool import _native
from own_memory import MIB, allocate_in, capturing

MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


def feed(pool=None):
    malloc, free = gpupool.c_api.feed(pool)
    return MALLOC(malloc), FREE(free)


def test_each_pool_has_a_function_of_its_own_which_follows_no_scope(nothing_left):
    first, second = gpupool.MemPool(), gpupool.MemPool()
    default = gpupool.memory_stats(0).live_bytes
    pairs = [feed(pool) for pool in (first, second, None)]
    with gpupool.use_mem_pool(second):
        addresses = [malloc(2 * MIB, 0, None) for malloc, _ in pairs]
        assert gpupool.empty(MIB).pool_id == second.id
    assert [pool.stats().live_bytes for pool in (first, second)] == [2 * MIB, 2 * MIB]
    assert gpupool.memory_stats(0).live_bytes == default + 6 * MIB
    for address in addresses:
        pairs[0][1](address, 2 * MIB, 0, None)
    assert [pool.stats().live_bytes for pool in (first, second)] == [0, 0]
    assert gpupool.memory_stats(0).live_bytes == default


def test_a_pool_keeps_its_function_and_a_token_names_the_pool():
    pool = gpupool.MemPool()
    assert gpupool.c_api.feed(pool) == gpupool.c_api.feed(pool) == gpupool.c_api.feed(pool.token())
    assert gpupool.c_api.feed()[0] not in (gpupool.c_api.feed(pool)[0], gpupool.c_api.malloc)


def test_the_scope_is_the_same_after_a_failure():
    pool, other = gpupool.MemPool(limit=2 * MIB), gpupool.MemPool()
    malloc, _ = feed(pool)
    with gpupool.use_mem_pool(other):
        assert malloc(4 * MIB, 0, None) is None
        assert gpupool.empty(MIB).pool_id == other.id
    assert gpupool.empty(MIB).pool_id == (0, 0)
    assert (pool.use_count(), other.use_count()) == (1, 1)


def test_null_where_there_is_no_memory():
    pool = gpupool.MemPool(limit=2 * MIB)
    malloc, free = feed(pool)
    assert [malloc(size, 0, None) for size in (0, -1, 4 * MIB, 1 << 62)] == [None] * 4
    # A device that is not the pool's, and none at all.
    assert (malloc(MIB, 1, None), malloc(MIB, 7, None), feed()[0](MIB, 7, None)) == (None, None, None)
    address = malloc(2 * MIB, 0, None)
    assert address
    for _ in range(2):
        free(address, 2 * MIB, 0, None)
    free(None, 0, 0, None)
    assert malloc(2 * MIB, 0, None) == address
    free(address, 2 * MIB, 0, None)


def test_the_default_pool_is_that_of_the_device_named():
    malloc, free = feed()
    before = gpupool.memory_stats(1).live_bytes
    address = malloc(MIB, 1, None)
    assert gpupool.memory_stats(1).live_bytes == before + MIB
    free(address, MIB, 1, None)
    assert gpupool.memory_stats(1).live_bytes == before


def test_memory_outlives_its_pool_whose_function_then_gives_null(nothing_left):
    pool = gpupool.MemPool()
    malloc, free = feed(pool)
    address = malloc(MIB, 0, None)
    ctypes.memset(address, 7, MIB)
    token = pool.token()
    del pool
    gc.collect()
    assert malloc(MIB, 0, None) is None
    assert ctypes.string_at(address, MIB) == b"\7" * MIB
    free(address, MIB, 0, None)
    with pytest.raises(gpupool.InvalidValue, match="dropped"):
        gpupool.c_api.feed(token)


def test_there_are_64_functions_and_those_of_dropped_pools_serve_again():
    pools, functions = [gpupool.MemPool() for _ in range(64)], set()
    # Other tests' pools may be alive.
    with contextlib.suppress(_native.Unavailable):
        functions.update(gpupool.c_api.feed(pool) for pool in pools)
    with pytest.raises(_native.Unavailable, match="64 pools feed other allocators"):
        gpupool.c_api.feed(gpupool.MemPool())
    assert functions == {gpupool.c_api.feed(pool) for pool in pools[: len(functions)]}
    assert len(functions) > 48
    del pools
    gc.collect()
    pool = gpupool.MemPool()
    malloc, free = feed(pool)
    address = malloc(MIB, 0, None)
    assert pool.stats().live_bytes == MIB
    free(address, MIB, 0, None)


@pytest.mark.parametrize("pool", [5, (0, 1), "pool"])
def test_only_pools_have_functions(pool):
    with pytest.raises(gpupool.InvalidValue, match="feed takes a MemPool"):
        gpupool.c_api.feed(pool)


def test_no_callback_is_asked_for_the_caller_may_hold_a_lock():
    asked = []
    callback = gpupool.on_oom(lambda device, nbytes: asked.append(nbytes))
    pool = gpupool.MemPool(limit=2 * MIB)
    assert feed(pool)[0](4 * MIB, 0, None) is None
    assert asked == []
    with pytest.raises(gpupool.OutOfMemory):
        allocate_in(pool, 4 * MIB)
    assert asked == [4 * MIB]
    callback.remove()


def test_nothing_is_at_work_on_what_it_gives():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    malloc, free = feed(pool)
    for is_at_work in (True, False):
        buffer = allocate_in(pool, 4 * MIB, stream)
        work = _native.host_submit(stream)
        was = buffer.ptr
        del buffer
        if not is_at_work:
            _native.host_complete(stream, work)
        address = malloc(4 * MIB, 0, stream.ptr)
        assert (address != was) == is_at_work
        _native.host_complete(stream, work)
        free(address, 4 * MIB, 0, None)
        pool.trim()


def test_captures_are_left_whole():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    malloc, free = feed(pool)
    allocate_in(pool, 8 * MIB)
    with capturing(gpupool.MemPool(), stream):
        addresses = [malloc(size * MIB, 0, stream.ptr) for size in (1, 2, 40)]
        assert all(addresses)
        free(addresses[0], MIB, 0, stream.ptr)
    for address in addresses[1:]:
        free(address, 0, 0, stream.ptr)
    gpupool.empty_cache()
    assert pool.stats().live_bytes == 0


@pytest.mark.parametrize("again", ["same stream", "trim"])
def test_a_graphs_memory_waits_for_replays_on_any_stream(again):
    pool, captured, other = gpupool.MemPool(), gpupool.Stream(), gpupool.Stream()
    with capturing(pool, captured) as memory:
        buffer = gpupool.empty(4 * MIB, captured)
    # A replay.
    work = _native.host_submit(other)
    was = buffer.ptr
    del buffer
    memory.reset()
    reserved = pool.stats().reserved_bytes
    if again == "trim":
        pool.trim()
        assert pool.stats().reserved_bytes == reserved, "the graph may be at work on it"
    else:
        pool.limit = reserved + 4 * MIB
        moved = gpupool.memory_stats(0).moved_pages
        buffer = allocate_in(pool, 4 * MIB, captured)
        assert buffer.ptr != was, "the graph may be at work on it"
        assert gpupool.memory_stats(0).moved_pages == moved, "the graph may be at work on it"
        del buffer
    _native.host_complete(other, work)
    pool.trim()
    assert pool.stats().reserved_bytes == 0


def bare_feed(pool=None):
    forms = (ctypes.c_void_p, ctypes.c_size_t), (None, ctypes.c_void_p), (None,)
    return [
        ctypes.CFUNCTYPE(*form)(address) for form, address in zip(forms, gpupool.c_api.bare_feed(pool), strict=True)
    ]


def test_in_the_barest_form_a_size_is_enough(nothing_left):
    pool, other = gpupool.MemPool(limit=8 * MIB), gpupool.MemPool(device=1)
    (malloc, free, _), (malloc_of_other, *_), (malloc_of_default, *_) = map(bare_feed, (pool, other, None))
    default = [gpupool.memory_stats(device).live_bytes for device in (0, 1)]
    with gpupool.use_mem_pool(gpupool.MemPool()):
        addresses = [malloc(3 * MIB), malloc_of_other(MIB), malloc_of_default(MIB)]
    assert (pool.stats().live_bytes, other.stats().live_bytes) == (3 * MIB, MIB)
    assert [gpupool.memory_stats(device).live_bytes for device in (0, 1)] == [default[0] + 4 * MIB, default[1] + MIB]
    assert (malloc(0), malloc(16 * MIB), malloc((1 << 64) - 1)) == (None, None, None)
    for address in [*addresses, None]:
        free(address)
    assert (pool.stats().live_bytes, other.stats().live_bytes) == (0, 0)


def test_the_barest_form_has_its_pools_rules():
    pool, user = gpupool.MemPool(), gpupool.Stream()
    malloc, free, empty_cache = bare_feed(pool)
    assert gpupool.c_api.bare_feed(pool) == gpupool.c_api.bare_feed(pool.token())
    address = malloc(4 * MIB)
    work = _native.host_submit(user)
    free(address)
    other = malloc(4 * MIB)
    assert other != address
    _native.host_complete(user, work)
    assert malloc(4 * MIB) == address
    free(address)
    before = pool.stats().reserved_bytes
    empty_cache()
    assert pool.stats().reserved_bytes == before - 4 * MIB
    free(other)
    with pytest.raises(gpupool.InvalidValue, match="bare_feed takes a MemPool"):
        gpupool.c_api.bare_feed(5)
    del pool
    gc.collect()
    assert malloc(MIB) is None
