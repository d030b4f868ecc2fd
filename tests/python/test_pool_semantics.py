"""What users of PyTorch's MemPool, graphs and caching allocator rely on, and gpupool does too."""

import ctypes
import gc
from concurrent.futures import ThreadPoolExecutor

import gpupool
import pytest
from gpupool import _native
from own_memory import MIB, Allocator, allocate_in, capturing, entered_elsewhere, leave, other_thread

pytestmark = pytest.mark.usefixtures("nothing_left")


def address_of(pool, nbytes, stream=None):
    """Return where the pool puts a buffer, which is freed at once."""
    return allocate_in(pool, nbytes, stream).ptr


def live_addresses(segments):
    blocks = [block for segment in segments for block in segment["blocks"]]
    return {block["address"] for block in blocks if block["state"] == "active_allocated"}


# ---- ids and scopes ----


def test_ids_for_graphs_and_for_users_are_counted_apart():
    users = [gpupool.graph_pool_handle(), gpupool.MemPool().id, gpupool.graph_pool_handle()]
    graphs = [gpupool.graph_pool_handle(is_user_created=False) for _ in range(2)]
    assert {zero for zero, _ in users} == {zero for _, zero in graphs} == {0}
    assert users == sorted(users)
    assert graphs[1][0] == graphs[0][0] + 1


def test_pools_made_by_many_threads_have_ids_of_their_own():
    with ThreadPoolExecutor(4) as executor:
        lists = list(executor.map(lambda _: [gpupool.MemPool().id for _ in range(50)], range(4)))
    assert len({pool_id for ids in lists for pool_id in ids}) == 200


def test_scopes_left_in_another_order_route_to_those_that_remain():
    first, second = gpupool.MemPool(), gpupool.MemPool()
    scopes = gpupool.use_mem_pool(first), gpupool.use_mem_pool(second)
    for scope in scopes:
        scope.__enter__()
    scopes[0].__exit__(None, None, None)
    assert gpupool.empty(MIB).pool_id == second.id
    scopes[1].__exit__(None, None, None)
    assert gpupool.empty(MIB).pool_id == (0, 0)
    assert (first.use_count(), second.use_count()) == (1, 1)


def test_a_scope_routes_what_is_allocated_through_the_c_interface():
    malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(gpupool.c_api.malloc)
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(gpupool.c_api.free)
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        address = malloc(MIB, 0, None)
    assert live_addresses(pool.snapshot()) == {address}
    free(address, MIB, 0, None)
    assert live_addresses(pool.snapshot()) == set()


def test_a_block_goes_back_to_its_pool_wherever_it_is_freed():
    pool = gpupool.MemPool()
    with other_thread() as run, gpupool.use_mem_pool(pool):
        buffers = [gpupool.empty(4 * MIB)]
        address = buffers[0].ptr
        run(buffers.clear)
        assert gpupool.empty(4 * MIB).ptr == address
    buffers = [allocate_in(pool, 4 * MIB)]
    with gpupool.use_mem_pool(gpupool.MemPool()):
        buffers.clear()
        assert gpupool.empty(4 * MIB).ptr != address
    assert address_of(pool, 4 * MIB) == address


def test_a_snapshot_shows_a_pools_own_live_blocks():
    pool, other = gpupool.MemPool(), gpupool.MemPool()
    buffers = [allocate_in(pool, size) for size in (1000, 3 * MIB, 40_000, 5 * MIB)]
    others = [allocate_in(other, MIB), gpupool.empty(MIB)]
    del buffers[1]
    assert live_addresses(pool.snapshot()) == {buffer.ptr for buffer in buffers}
    segments = gpupool.memory_snapshot()["segments"]
    assert {segment["segment_pool_id"] for segment in segments} == {(0, 0), pool.id, other.id}
    assert live_addresses(segments) == {buffer.ptr for buffer in [*buffers, *others]}


# ---- allocators of one's own ----


def test_what_is_free_goes_back_to_the_allocator_when_its_pool_dies():
    own = Allocator()
    pool = own.pool()
    kept = allocate_in(pool, 4 * MIB)
    allocate_in(pool, 8 * MIB)
    assert len(own.live) == 2
    del pool
    assert list(own.live) == [kept.ptr]


def test_the_last_block_of_a_dead_pool_takes_its_segment_with_it_on_any_thread():
    own = Allocator()
    buffers = [allocate_in(own.pool(), MIB)]
    assert own.live != {}
    with other_thread() as run:
        run(buffers.clear)
    assert own.live == {}


def test_a_dead_pools_block_that_a_stream_uses_goes_once_that_is_done():
    own, side = Allocator(), gpupool.Stream()
    buffer = allocate_in(own.pool(), MIB)
    work = _native.host_submit(side)
    buffer.record_stream(side)
    del buffer
    assert gpupool.empty_cache() == 0
    assert own.live != {}
    _native.host_complete(side, work)
    assert gpupool.empty_cache() == 2 * MIB
    assert own.live == {}


def test_nested_pools_ask_their_own_allocators():
    outer, inner = Allocator(), Allocator(1 << 45)
    with gpupool.use_mem_pool(outer.pool()):
        kept = [gpupool.empty(2 * MIB)]
        with gpupool.use_mem_pool(inner.pool()):
            kept.append(gpupool.empty(4 * MIB))
        kept.append(gpupool.empty(6 * MIB))
    assert [size for size, *_ in outer.calls] == [2 * MIB, 6 * MIB]
    assert [size for size, *_ in inner.calls] == [4 * MIB]


def test_an_allocator_is_told_the_stream_also_in_a_capture():
    own, stream, captured = Allocator(), gpupool.Stream(), gpupool.Stream()
    pool = own.pool()
    allocate_in(pool, MIB, stream)
    with capturing(pool, captured):
        gpupool.empty(MIB, captured)
    assert [asked for _, _, asked in own.calls] == [stream.ptr, captured.ptr]


def test_blocks_of_a_pool_without_splitting_have_segments_of_their_own():
    own = Allocator()
    pool = own.pool(no_split=True)
    buffers = [allocate_in(pool, size) for size in (100, 100, MIB, 3 * MIB)]
    assert list(own.live) == [buffer.ptr for buffer in buffers]
    address = buffers.pop().ptr
    # A smaller request takes the whole of what is free.
    buffers += [allocate_in(pool, MIB), allocate_in(pool, MIB)]
    assert buffers[-2].ptr == address
    assert len(own.live) == 5
    assert all(len(segment["blocks"]) == 1 for segment in pool.snapshot())


# ---- graphs ----


def test_a_second_graph_of_the_pool_uses_what_the_first_one_freed():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    with capturing(pool, stream) as first:
        kept, freed = gpupool.empty(4 * MIB, stream), gpupool.empty(6 * MIB, stream)
        address = freed.ptr
        del freed
    with capturing(pool, stream) as second:
        assert gpupool.empty(6 * MIB, stream).ptr == address
    assert pool.stats().reserved_bytes == 10 * MIB
    assert live_addresses(pool.snapshot()) == {kept.ptr}
    assert first.pool_id == second.pool_id == pool.id


def test_graphs_share_a_pools_memory_until_the_last_one_is_reset():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    with capturing(pool, stream) as first:
        gpupool.empty(4 * MIB, stream)
    with capturing(pool, stream) as second:
        gpupool.empty(4 * MIB, stream)
    assert pool.use_count() == 3
    first.reset()
    assert (pool.use_count(), pool.trim()) == (2, 0)
    second.reset()
    assert (pool.use_count(), pool.trim()) == (1, 4 * MIB)


def test_a_graph_forgotten_without_a_reset_gives_its_memory_back():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    with capturing(pool, stream) as memory:
        gpupool.empty(4 * MIB, stream)
    memory.reset()
    memory.reset()
    assert pool.use_count() == 1
    with capturing(pool, stream) as memory:
        gpupool.empty(4 * MIB, stream)
    del memory
    assert (pool.use_count(), pool.trim()) == (1, 4 * MIB)


def test_a_block_that_dies_after_the_capture_stays_the_graphs():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    with capturing(pool, stream) as memory:
        result = gpupool.empty(4 * MIB, stream)
    address = result.ptr
    del result
    assert address_of(pool, 4 * MIB, stream) != address
    assert gpupool.empty(4 * MIB, stream).ptr != address
    gpupool.empty_cache()
    assert pool.stats().reserved_bytes == 4 * MIB
    with capturing(pool, stream):
        assert gpupool.empty(4 * MIB, stream).ptr == address
    memory.reset()


@pytest.mark.parametrize("size", [512, MIB, MIB + 512, 10 * MIB - 512, 10 * MIB + 512])
def test_a_result_is_valid_after_its_graph_and_pool_are_gone(size):
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    with capturing(pool, stream) as memory:
        result = gpupool.empty(size, stream)
        gpupool.empty(30 * MIB, stream)
    ctypes.memset(result.ptr, 7, size)
    memory.reset()
    del memory, pool
    gc.collect()
    assert gpupool.memory_stats().requested_bytes == size
    # Whatever the graph had beside it may be used again, and overwritten.
    others = [gpupool.empty(size, stream) for _ in range(20)]
    for other in others:
        ctypes.memset(other.ptr, 1, size)
    assert ctypes.string_at(result.ptr, size) == b"\x07" * size
    del others, other, result
    gpupool.empty_cache()
    assert gpupool.memory_stats().reserved_bytes == 0


def test_a_graph_keeps_its_memory_when_the_pool_object_dies_first():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    with capturing(pool, stream) as memory:
        gpupool.empty(4 * MIB, stream)
    del pool
    assert gpupool.empty_cache() == 0
    assert gpupool.memory_stats().reserved_bytes == 4 * MIB
    memory.reset()
    gpupool.empty_cache()
    assert gpupool.memory_stats().reserved_bytes == 0


def test_a_request_that_fails_does_not_take_what_a_graph_has_free():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    with capturing(pool, stream) as memory:
        gpupool.empty(8 * MIB, stream)
    leave(0)
    with pytest.raises(gpupool.OutOfMemory):
        gpupool.empty(8 * MIB, stream)
    assert pool.stats().reserved_bytes == 8 * MIB
    memory.reset()
    assert address_of(pool, 8 * MIB, stream)
    pool.trim()
    assert gpupool.empty(8 * MIB, stream).pool_id == (0, 0)


def test_running_out_of_memory_in_a_capture_does_not_spoil_it():
    pool, stream = gpupool.MemPool(limit=8 * MIB), gpupool.Stream()
    with capturing(pool, stream):
        with pytest.raises(gpupool.OutOfMemory):
            gpupool.empty(16 * MIB, stream)
        assert gpupool.empty(8 * MIB, stream).pool_id == pool.id


def test_another_thread_allocates_and_frees_during_a_capture():
    pool, stream, side = gpupool.MemPool(), gpupool.Stream(), gpupool.Stream()
    with capturing(pool, stream), other_thread() as run:
        captured = gpupool.empty(4 * MIB, stream)
        buffer = run(gpupool.empty, 64 * MIB, side)
        assert (buffer.pool_id, captured.pool_id) == ((0, 0), pool.id)
        del buffer
        run(gpupool.empty_cache)
    gpupool.empty_cache()
    assert gpupool.memory_stats().reserved_bytes == 4 * MIB


def test_threads_capture_at_once():
    pools, streams = [gpupool.MemPool() for _ in range(2)], [gpupool.Stream() for _ in range(2)]
    with capturing(pools[0], streams[0]), entered_elsewhere(capturing(pools[1], streams[1])) as run:
        assert gpupool.empty(4 * MIB, streams[0]).pool_id == pools[0].id
        assert run(gpupool.empty, 4 * MIB, streams[1]).pool_id == pools[1].id


def test_a_block_that_another_captured_stream_uses_is_not_used_again_in_the_capture():
    pool, stream, side = gpupool.MemPool(), gpupool.Stream(), gpupool.Stream()
    # As a stream joins a capture by waiting for an event of it.
    _native.host_begin_capture(side)
    with capturing(pool, stream) as memory:
        buffer = gpupool.empty(4 * MIB, stream)
        address = buffer.ptr
        buffer.record_stream(side)
        del buffer
        assert gpupool.empty(4 * MIB, stream).ptr != address
        assert pool.stats().waiting_blocks == 1
    _native.host_end_capture(side)
    memory.reset()
    pool.trim()
    stats = pool.stats()
    assert (stats.waiting_blocks, stats.reserved_bytes) == (0, 0)


def test_captures_one_after_another_take_no_more_memory_than_one():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    reserved = []
    for _ in range(10):
        with capturing(pool, stream) as memory:
            buffers = [gpupool.empty(size, stream) for size in (1000, 3 * MIB, 8 * MIB)]
        reserved.append(pool.stats().reserved_bytes)
        del buffers
        memory.reset()
    assert set(reserved) == {reserved[0]}


def test_a_scope_inside_a_capture_is_not_the_graphs():
    graphs, eager, stream = gpupool.MemPool(), gpupool.MemPool(), gpupool.Stream()
    with graphs.capture(stream) as memory:
        assert allocate_in(eager, 4 * MIB).pool_id == eager.id
        assert gpupool.empty(4 * MIB, stream).pool_id == graphs.id
    assert eager.trim() == 4 * MIB
    assert graphs.trim() == 0
    memory.reset()


def test_a_thread_allocates_to_a_graphs_pool_by_its_id():
    pool_id = gpupool.graph_pool_handle(is_user_created=False)
    with other_thread() as run:
        run(gpupool.torch.begin_allocate_to_pool, 0, pool_id)
        buffers = [run(gpupool.empty, 4 * MIB), run(gpupool.empty, 4 * MIB), gpupool.empty(4 * MIB)]
        run(gpupool.torch.end_allocate_to_pool, 0, pool_id)
        buffers.append(run(gpupool.empty, 4 * MIB))
    assert [buffer.pool_id for buffer in buffers] == [pool_id, pool_id, (0, 0), (0, 0)]
    kept = buffers.pop(0)
    buffers.clear()
    # What the thread has freed may still be written by the graph.
    assert gpupool.empty_cache() == 8 * MIB
    gpupool.torch.release_pool(0, pool_id)
    gpupool.empty_cache()
    assert gpupool.memory_stats().reserved_bytes == 4 * MIB
    assert kept.pool_id == pool_id


# ---- what is a pool's stays a pool's ----


def test_a_live_pool_keeps_what_it_has_freed_and_one_made_to_help_gives_it():
    keeper, helper = gpupool.MemPool(), gpupool.MemPool(use_on_oom=True)
    freed = [allocate_in(pool, 40 * MIB) for pool in (keeper, helper)]
    leave(0)
    del freed
    served = [gpupool.empty(16 * MIB), allocate_in(gpupool.MemPool(), 16 * MIB)]
    assert keeper.stats().reserved_bytes == 40 * MIB
    assert helper.stats().reserved_bytes <= 8 * MIB
    with pytest.raises(gpupool.OutOfMemory):
        gpupool.empty(30 * MIB)
    assert allocate_in(keeper, 40 * MIB).pool_id == keeper.id
    del keeper
    served.append(gpupool.empty(30 * MIB))
    assert [buffer.pool_id == helper.id for buffer in served] == [False] * 3


@pytest.mark.parametrize("kind", [{"no_split": True}, {"segments": True}, {"no_split": True, "use_on_oom": True}])
def test_segments_that_may_be_registered_stay_where_they_are(kind):
    pool = gpupool.MemPool(**kind)
    address = address_of(pool, 8 * MIB)
    leave(0)
    assert gpupool.empty_cache() == 0
    with pytest.raises(gpupool.OutOfMemory):
        gpupool.empty(12 * MIB)
    assert (address_of(pool, 8 * MIB), pool.stats().reserved_bytes) == (address, 8 * MIB)
    assert pool.trim() == 8 * MIB


def test_a_reserve_is_the_pools_from_birth_to_end_in_one_piece():
    pool = gpupool.MemPool(reserve=63 * MIB)
    assert (pool.reserve, pool.stats().reserved_bytes, pool.stats().cached_bytes) == (64 * MIB,) * 3
    leave(0)
    calls = gpupool.memory_stats().driver_calls
    start = address_of(pool, 64 * MIB)
    parts = [allocate_in(pool, size, gpupool.Stream()) for size in (300, MIB, 40 * MIB)]
    assert all(start <= part.ptr < start + 64 * MIB for part in parts)
    del parts
    assert (pool.trim(), gpupool.empty_cache(), pool.stats().reserved_bytes) == (0, 0, 64 * MIB)
    assert address_of(pool, 64 * MIB) == start
    assert gpupool.memory_stats().driver_calls == calls
    with pytest.raises(gpupool.OutOfMemory):
        gpupool.empty(MIB)
    pool.close()
    assert gpupool.empty(64 * MIB).pool_id == (0, 0)


def test_a_reserve_that_is_not_there_is_refused_at_once():
    held = gpupool.empty(MIB)
    leave(30 * MIB)
    pools = gpupool.memory_stats().pools
    with pytest.raises(gpupool.OutOfMemory) as caught:
        gpupool.MemPool(reserve=64 * MIB)
    assert caught.value.requested_bytes == 64 * MIB
    assert (gpupool.memory_stats().pools, gpupool.memory_stats().live_blocks) == (pools, 1)
    for kind in ({"no_split": True}, {"segments": True}, {"limit": MIB}, {"allocator": (lambda *_: 0, lambda *_: 0)}):
        with pytest.raises(gpupool.InvalidValue):
            gpupool.MemPool(reserve=2 * MIB, **kind)
    for wrong in (-1, 2**64):
        with pytest.raises(gpupool.InvalidValue):
            gpupool.MemPool(reserve=wrong)
    del held


# ---- memory that runs out, and statistics ----


def test_a_request_succeeds_once_memory_was_freed():
    leave(32 * MIB)
    first, second = gpupool.empty(16 * MIB), gpupool.empty(16 * MIB, gpupool.Stream())
    with pytest.raises(gpupool.OutOfMemory):
        gpupool.empty(16 * MIB)
    del first
    assert gpupool.empty(16 * MIB).nbytes == second.nbytes


def test_a_fraction_limits_one_device_to_the_byte():
    leave(16 * MIB)
    assert 0 < gpupool.get_per_process_memory_fraction() < 0.1
    assert gpupool.get_per_process_memory_fraction(1) == 1
    kept = gpupool.empty(16 * MIB)
    with pytest.raises(gpupool.OutOfMemory, match="fraction is used up"):
        gpupool.empty(512)
    assert gpupool.empty(32 * MIB, gpupool.Stream(1)).device == 1
    assert kept.device == 0


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_fractions_that_cannot_be(fraction):
    with pytest.raises(gpupool.InvalidValue, match="is no fraction"):
        gpupool.set_per_process_memory_fraction(fraction)
    assert gpupool.get_per_process_memory_fraction() == 1


def test_peaks_start_anew_from_what_is_held():
    pool = gpupool.MemPool()
    kept = allocate_in(pool, 4 * MIB)
    allocate_in(pool, 8 * MIB)
    assert pool.stats().peak_live_bytes == 12 * MIB
    pool.trim()
    gpupool.reset_peak_stats()
    stats = pool.stats()
    assert (stats.peak_live_bytes, stats.peak_reserved_bytes) == (4 * MIB, 4 * MIB)
    assert gpupool.memory_stats().peak_reserved_bytes == 4 * MIB
    assert (stats.allocations, stats.frees, kept.nbytes) == (2, 1, 4 * MIB)


def test_a_capture_keeps_its_pool():
    capture = gpupool.MemPool().capture(gpupool.Stream())
    with capture as memory:
        assert gpupool.empty(MIB).pool_id == memory.pool_id


def test_a_capture_dropped_in_its_block_routes_no_more():
    pool = gpupool.MemPool()
    capture = pool.capture(gpupool.Stream())
    capture.__enter__()
    del capture
    assert (pool.use_count(), gpupool.empty(MIB).pool_id) == (1, (0, 0))


def test_a_capture_whose_generator_another_thread_ends_routes_no_more():
    pool, side, stream = gpupool.MemPool(), gpupool.MemPool(), gpupool.Stream()

    def captured():
        with pool.capture(stream):
            with gpupool.use_mem_pool(side):
                gpupool.empty(MIB, stream).free()
            yield

    generator = captured()
    next(generator)
    assert (pool.use_count(), side.use_count(), gpupool.empty(MIB, stream).pool_id) == (2, 2, pool.id)
    with other_thread() as run:
        with pytest.raises(gpupool.InvalidValue, match="left on a thread that did not enter it"):
            run(generator.close)
        del generator
        gc.collect()
    assert (pool.use_count(), side.use_count(), gpupool.empty(MIB, stream).pool_id) == (1, 1, (0, 0))


def test_a_snapshot_tells_blocks_that_wait_from_blocks_that_are_held():
    pool, stream, side = gpupool.MemPool(), gpupool.Stream(), gpupool.Stream()
    work = _native.host_submit(side)
    for nbytes in (700, 4 * MIB):
        buffer = allocate_in(pool, nbytes, stream)
        buffer.record_stream(side)
        del buffer
    states = [block["state"] for segment in pool.snapshot() for block in segment["blocks"]]
    assert states.count("active_pending_free") == 2
    assert "active_allocated" not in states
    _native.host_complete(side, work)
