"""Faults that users of PyTorch's pools met, each with the issue's number: gpupool does not have them."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import gpupool
import pytest
from gpupool import _native
from own_memory import MIB, Allocator, allocate_in, capturing, entered_elsewhere, leave, other_thread

pytestmark = pytest.mark.usefixtures("nothing_left")


# ---- scopes ----


def test_the_pool_entered_last_serves_also_if_it_was_entered_before():
    """pytorch#161193: of nested pools the one entered first served."""
    first, second = gpupool.MemPool(), gpupool.MemPool()
    served = []
    with gpupool.use_mem_pool(first), gpupool.use_mem_pool(second):
        with gpupool.use_mem_pool(first):
            served.append(gpupool.empty(MIB).pool_id)
        served.append(gpupool.empty(MIB).pool_id)
    assert served == [first.id, second.id]


def test_a_scope_takes_nothing_from_a_thread_that_is_at_work_already():
    """pytorch#152861: a pool in use took in what every thread of the device allocated."""
    pool = gpupool.MemPool()
    with other_thread() as run:
        run(gpupool.empty, MIB)
        with gpupool.use_mem_pool(pool):
            assert run(gpupool.empty, MIB).pool_id == (0, 0)
            assert gpupool.empty(MIB).pool_id == pool.id


def test_threads_allocate_from_pools_of_their_own_at_once():
    """pytorch#153356: several threads that used several pools still met errors."""
    pools = [gpupool.MemPool() for _ in range(6)]
    barrier = threading.Barrier(len(pools), timeout=60)

    def work(pool):
        with gpupool.use_mem_pool(pool):
            barrier.wait()
            buffers = [gpupool.empty(size * MIB) for size in (1, 2, 3, 4)]
            barrier.wait()
            return {buffer.pool_id for buffer in buffers}

    with ThreadPoolExecutor(len(pools)) as executor:
        assert list(executor.map(work, pools)) == [{pool.id} for pool in pools]
    assert [pool.stats().allocations for pool in pools] == [4] * 6


def test_any_number_of_threads_are_in_one_pool_at_once():
    """NVIDIA/TensorRT-LLM#18317: to enter a pool that another thread was in raised an error."""
    pool = gpupool.MemPool()
    with entered_elsewhere(gpupool.use_mem_pool(pool)) as run, gpupool.use_mem_pool(pool):
        assert pool.use_count() == 3
        assert run(gpupool.empty, MIB).pool_id == gpupool.empty(MIB).pool_id == pool.id
    assert pool.use_count() == 1


def test_other_devices_keep_their_own_pools_inside_a_scope():
    """pytorch#149802: a pool of one device crashed once another device was current."""
    pool, stream = gpupool.MemPool(), gpupool.Stream(1)
    with gpupool.stream(stream), gpupool.use_mem_pool(pool):
        assert gpupool.current_device() == 1
        buffer = gpupool.empty(MIB)
        assert (buffer.device, buffer.pool_id) == (1, (0, 0))
        assert gpupool.empty(MIB, 0).device == 1
    assert (pool.device, pool.use_count()) == (0, 1)


def test_a_capture_that_cannot_begin_leaves_the_use_count():
    """pytorch#149802, pytorch#190308: uses were counted before a refusal, and stayed."""
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    with pytest.raises(gpupool.InvalidValue, match="cannot serve a capture on device 1"):
        pool.capture(gpupool.Stream(1)).__enter__()
    assert pool.use_count() == 1
    capture = pool.capture(stream)
    with capture as memory, pytest.raises(gpupool.InvalidValue, match="entered before"):
        capture.__enter__()
    assert pool.use_count() == 2
    memory.reset()
    assert pool.use_count() == 1


def test_a_pool_released_too_often_is_refused_and_crashes_nothing():
    """pytorch#189126: an assertion on the use count ended the process."""
    pool_id = gpupool.graph_pool_handle()
    gpupool.torch.begin_allocate_to_pool(0, pool_id)
    gpupool.torch.end_allocate_to_pool(0, pool_id)
    gpupool.torch.release_pool(0, pool_id)
    with pytest.raises(gpupool.InvalidValue, match="is gone"):
        gpupool.torch.release_pool(0, pool_id)
    pool = gpupool.MemPool()
    with pytest.raises(gpupool.InvalidValue, match="no use to release"):
        gpupool.torch.release_pool(0, pool.id)
    assert pool.use_count() == 1
    assert allocate_in(pool, MIB).pool_id == pool.id


# ---- what goes on elsewhere while a pool is in use ----


@pytest.mark.parametrize("captured", [False, True])
def test_blocks_of_several_streams_come_back_while_a_pool_is_in_use_elsewhere(captured):
    """pytorch#175015, pytorch#181830: while any thread was in a pool, such blocks piled up."""
    pool, graph = gpupool.MemPool(), gpupool.Stream()
    with entered_elsewhere(capturing(pool, graph) if captured else gpupool.use_mem_pool(pool)):
        assert comes_back_after_another_stream()


def test_blocks_of_several_streams_come_back_inside_a_pool():
    """pytorch#175015: there too they were kept, as if the pool were a graph's."""
    with gpupool.use_mem_pool(gpupool.MemPool()):
        assert comes_back_after_another_stream()


def comes_back_after_another_stream():
    """Return whether a block that another stream used serves again as soon as that stream is done, and not before."""
    stream, side = gpupool.Stream(), gpupool.Stream()
    buffer = gpupool.empty(4 * MIB, stream)
    address = buffer.ptr
    work = _native.host_submit(side)
    buffer.record_stream(side)
    del buffer
    others = [gpupool.empty(4 * MIB, stream).ptr]
    _native.host_complete(side, work)
    kept = gpupool.empty(4 * MIB, stream), gpupool.empty(4 * MIB, stream)
    assert address not in others
    return address in [buffer.ptr for buffer in kept]


@pytest.mark.parametrize("captured", [False, True])
def test_cached_memory_is_given_up_for_a_request_inside_a_pool(captured):
    """pytorch#159674, pytorch#175015: inside a pool, or a capture, a request failed rather than empty the caches."""
    own = Allocator()
    pool, stream = own.pool(), gpupool.Stream()
    gpupool.empty(8 * MIB)
    leave(0)
    with capturing(pool, stream) if captured else gpupool.use_mem_pool(pool):
        assert gpupool.empty(8 * MIB, stream).pool_id == pool.id
    assert gpupool.memory_stats().reserved_bytes == 8 * MIB


def test_cached_memory_is_given_up_while_another_thread_is_in_a_pool():
    """pytorch#175015: a scope on any thread kept every other one from emptying the caches when memory ran out."""
    own, idle = Allocator(), gpupool.MemPool(use_on_oom=True)
    pool = own.pool()
    allocate_in(idle, 8 * MIB)
    leave(0)
    with entered_elsewhere(gpupool.use_mem_pool(gpupool.MemPool())):
        assert allocate_in(pool, 8 * MIB).pool_id == pool.id


@pytest.mark.parametrize("captured", [False, True])
def test_empty_cache_works_while_another_thread_is_in_a_pool(captured):
    """vllm-project/vllm#49151, pytorch#181830: it did nothing, and said nothing."""
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    scope = capturing(pool, stream) if captured else gpupool.use_mem_pool(pool)
    with entered_elsewhere(scope):
        gpupool.empty(8 * MIB)
        assert gpupool.empty_cache() == 8 * MIB


def test_a_pool_dies_while_another_one_captures():
    """pytorch#181830: an assertion failed when a pool was dropped while another one was in use."""
    own, stream = Allocator(), gpupool.Stream()
    dying, pool = own.pool(), gpupool.MemPool()
    allocate_in(dying, MIB)
    with entered_elsewhere(capturing(pool, stream)):
        del dying
        assert own.live == {}


def allocate_and_spoil(stream, kept):
    kept.append(gpupool.empty(4 * MIB, stream))
    gpupool.empty(8 * MIB, stream)
    # Nobody may ask about a captured stream, so this spoils the capture.
    stream.query()


def test_a_capture_that_fails_leaves_a_pool_that_can_be_captured_into_and_dropped():
    """pytorch#159301, pytorch#190308: a failed capture kept its pool, whose end then failed an assertion."""
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    kept = []
    _native.host_begin_capture(stream)
    with pytest.raises(gpupool.LibraryError), pool.capture(stream):
        allocate_and_spoil(stream, kept)
    with pytest.raises(gpupool.LibraryError):
        _native.host_end_capture(stream)
    assert pool.use_count() == 1
    with capturing(pool, stream) as memory:
        gpupool.empty(8 * MIB, stream)
    memory.reset()
    del memory, pool, kept
    assert gpupool.empty_cache() == 0
    assert gpupool.memory_stats().reserved_bytes == 0


# ---- allocators of one's own ----


def test_memory_goes_back_to_the_allocator_it_came_from():
    """pytorch#146431: a buffer that outlived its pool was freed with the driver's function."""
    first, second = Allocator(), Allocator(1 << 45)
    pools = [first.pool(), second.pool()]
    buffers = [allocate_in(pool, 4 * MIB) for pool in pools]
    buffers.append(gpupool.empty(4 * MIB))
    del pools
    gc.collect()
    assert (len(first.live), len(second.live)) == (1, 1)
    del buffers[0]
    assert (len(first.live), len(second.live)) == (0, 1)
    del buffers[0]
    assert second.live == {}


def test_memory_of_an_allocator_is_given_back_by_the_pools_trim_alone():
    """pytorch#145168: it stayed. What it has may be registered, so that only the pool's user knows when it may go."""
    own = Allocator()
    pool = own.pool()
    kept = allocate_in(pool, 4 * MIB)
    allocate_in(pool, 8 * MIB)
    assert (gpupool.empty_cache(), len(own.live)) == (0, 2)
    assert pool.trim() == 8 * MIB
    assert list(own.live) == [kept.ptr]


def test_an_allocator_lives_as_long_as_its_memory():
    """pytorch#171962: freeing a buffer called an allocator that was gone."""
    own = Allocator()
    alive, live, pool = weakref.ref(own), own.live, own.pool()
    buffer = allocate_in(pool, MIB)
    del own, pool
    gc.collect()
    assert alive() is not None
    assert live != {}
    del buffer
    assert live == {}


def test_only_memory_of_gpupools_own_moves():
    """pytorch#147851, pytorch#148378, pytorch#185818: expandable segments met pools with an allocator."""
    own = Allocator()
    pools = own.pool(), gpupool.MemPool(), gpupool.MemPool(segments=True)
    buffers = [allocate_in(pool, 3 * MIB) for pool in pools]
    assert [pool.snapshot()[0]["is_expandable"] for pool in pools] == [False, True, False]
    assert buffers[0].ptr in own.live


# ---- standing in when memory has run out ----


def test_a_stand_in_is_left_alone_as_long_as_cached_memory_will_do():
    """pytorch#169699: the pool that is the last resort is used before the caches are given up."""
    own = Allocator()
    pool = own.pool(use_on_oom=True)
    allocate_in(pool, 8 * MIB)
    gpupool.empty(8 * MIB, gpupool.Stream())
    leave(0)
    assert gpupool.empty(8 * MIB).pool_id == (0, 0)
    assert pool.stats().allocations == 1


def test_a_dropped_pool_stands_in_no_more():
    """pytorch#169699: its id stayed in a list, and a request that met it there failed an assertion."""
    own = Allocator()
    pool = own.pool(use_on_oom=True)
    kept, _ = allocate_in(pool, MIB // 2), allocate_in(pool, MIB)
    del pool, _
    leave(0)
    with pytest.raises(gpupool.OutOfMemory):
        gpupool.empty(MIB)
    assert kept.ptr in own.live


def test_a_pool_stands_in_while_another_thread_is_in_it():
    """pytorch#169699: a pool lends by being entered, which fails while another thread is in it."""
    own = Allocator()
    pool = own.pool(use_on_oom=True)
    with entered_elsewhere(gpupool.use_mem_pool(pool)) as run:
        # Freed in its own thread: free-threaded Python has an object's end wait for the thread that made it.
        address = run(lambda: gpupool.empty(8 * MIB).ptr)
        leave(0)
        served = gpupool.empty(8 * MIB)
        assert (served.ptr, served.pool_id) == (address, pool.id)
        assert pool.use_count() == 2


def test_a_pool_whose_pages_move_stands_in_with_parts_of_a_page():
    """pytorch#151487: the last resort passes over expandable segments."""
    pool = gpupool.MemPool(use_on_oom=True)
    kept, given = allocate_in(pool, MIB // 2), allocate_in(pool, MIB)
    address = given.ptr
    del given
    leave(0)
    served = gpupool.empty(MIB)
    assert (served.ptr, served.pool_id, kept.pool_id) == (address, pool.id, pool.id)


# ---- running out of memory ----


def test_what_waiting_for_streams_frees_is_found():
    """pytorch#189504, pytorch#191302: after waiting, only the driver was asked, and the request failed."""
    own = Allocator()
    pool = own.pool(limit=2 * MIB)
    side = gpupool.Stream()
    kept, freed = allocate_in(pool, MIB // 2), allocate_in(pool, MIB)
    address = freed.ptr
    _native.host_submit(side)
    freed.record_stream(side)
    del freed
    # Not a whole segment, so that nothing can go back to the allocator.
    assert allocate_in(pool, MIB).ptr == address
    assert (len(own.calls), kept.pool_id) == (1, pool.id)


def test_memory_that_waits_for_another_stream_serves_before_a_request_fails():
    """pytorch#19219, pytorch#19222: such memory was not waited for."""
    stream, side = gpupool.Stream(), gpupool.Stream()
    buffers = [gpupool.empty(8 * MIB, stream) for _ in range(4)]
    leave(0)
    _native.host_submit(side)
    for buffer in buffers:
        buffer.record_stream(side)
    del buffers, buffer
    assert gpupool.memory_stats().waiting_blocks == 4
    gpupool.empty(32 * MIB, stream)


def test_one_stuck_stream_holds_back_only_what_it_uses():
    """pytorch#71616, pytorch#71745: blocks queued behind the first one whose stream was not done."""
    stream, stuck, done = gpupool.Stream(), gpupool.Stream(), gpupool.Stream()
    first, second = gpupool.empty(4 * MIB, stream), gpupool.empty(4 * MIB, stream)
    addresses = first.ptr, second.ptr
    first.record_stream(stuck)
    second.record_stream(done)
    work = _native.host_submit(stuck), _native.host_submit(done)
    del first, second
    _native.host_complete(done, work[1])
    again = gpupool.empty(4 * MIB, stream)
    assert again.ptr == addresses[1]
    assert gpupool.memory_stats().waiting_blocks == 1
    _native.host_complete(stuck, work[0])


def test_free_memory_in_pieces_serves_a_large_request():
    """pytorch#18853, pytorch#35901: much was free, but no piece was large enough."""
    buffers = [gpupool.empty(2 * MIB) for _ in range(16)]
    leave(0)
    del buffers[::2]
    with pytest.raises(gpupool.OutOfMemory):
        gpupool.empty(18 * MIB)
    assert gpupool.empty(16 * MIB).nbytes == 16 * MIB


def test_larger_requests_use_what_smaller_ones_left():
    """pytorch#96995: segments of a fixed size did not serve requests that had grown, so that memory was taken anew."""
    buffers = [gpupool.empty(16 * MIB) for _ in range(8)]
    reserved = gpupool.memory_stats().reserved_bytes
    buffers.clear()
    buffers = [gpupool.empty(32 * MIB) for _ in range(4)]
    assert gpupool.memory_stats().reserved_bytes == reserved


def test_what_is_free_in_a_pool_that_helps_serves_others_before_a_request_fails():
    """vllm-project/vllm#49151: gigabytes were stranded in a pool that was not used any more."""
    keeper, pool = gpupool.MemPool(), gpupool.MemPool(use_on_oom=True)
    allocate_in(pool, 16 * MIB)
    allocate_in(keeper, 16 * MIB)
    leave(0)
    held = gpupool.empty(16 * MIB)
    assert (held.pool_id, pool.stats().reserved_bytes) == ((0, 0), 0)
    with pytest.raises(gpupool.OutOfMemory, match=r"keep their free memory until their trim\(\)"):
        gpupool.empty(16 * MIB)
    keeper.trim()
    assert gpupool.empty(16 * MIB).pool_id == (0, 0)


@pytest.mark.parametrize("segments", [False, True])
def test_a_limit_counts_memory_and_not_streams(segments):
    """pytorch#131152 asks for limits; what one stream has freed is not lost to the others."""
    pool = gpupool.MemPool(limit=8 * MIB, segments=segments)
    for _ in range(3):
        stream = gpupool.Stream()
        allocate_in(pool, 8 * MIB, stream)
        assert pool.stats().reserved_bytes == 8 * MIB
    held = allocate_in(pool, 4 * MIB, stream)
    with pytest.raises(gpupool.OutOfMemory, match="whose limit is"):
        allocate_in(pool, 8 * MIB, stream)
    assert (held.pool_id, pool.stats().peak_reserved_bytes) == (pool.id, 8 * MIB)


def test_the_error_names_what_private_pools_hold():
    """pytorch#121932, pytorch#124673: the text left out the memory of private pools."""
    pool = gpupool.MemPool()
    kept = allocate_in(pool, 6 * MIB)
    leave(0)
    with pytest.raises(gpupool.OutOfMemory) as raised:
        gpupool.empty(MIB)
    assert f"memory pool {kept.pool_id} 6.0 MiB (1 live block, 6.0 MiB)" in str(raised.value)


def test_every_pool_tells_what_it_has_reserved():
    """pytorch#178240: there was one sum for all pools."""
    pools = gpupool.MemPool(), gpupool.MemPool(segments=True)
    buffers = [allocate_in(pool, size * MIB) for pool, size in zip(pools, (4, 6), strict=True)]
    buffers.append(gpupool.empty(2 * MIB))
    assert [pool.stats().reserved_bytes for pool in pools] == [4 * MIB, 6 * MIB]
    assert gpupool.memory_stats().reserved_bytes == 12 * MIB
    buffers.clear()
    assert pools[1].trim() == 6 * MIB
    assert [pool.stats().reserved_bytes for pool in pools] == [4 * MIB, 0]


def test_a_callback_ends_when_it_is_removed():
    """pytorch#153571: what was attached could not be detached."""
    asked = []
    callbacks = [gpupool.on_oom(lambda *_, number=number: asked.append(number)) for number in range(3)]
    callbacks[1].remove()
    leave(0)
    with callbacks[0], callbacks[2], pytest.raises(gpupool.OutOfMemory):
        gpupool.empty(4 * MIB)
    assert asked == [0, 2]


def test_pools_made_and_dropped_in_cycles_leave_nothing():
    """vllm-project/vllm#36651, vllm-project/vllm#21336: each time that pools slept and woke, memory was lost."""
    stream, before = gpupool.Stream(), gpupool.memory_stats()
    for _ in range(3):
        own = Allocator()
        pools = [gpupool.MemPool(), own.pool(), gpupool.MemPool(no_split=True)]
        buffers = [allocate_in(pool, size, stream) for pool in pools for size in (1000, 3 * MIB, 20 * MIB)]
        with pools[0].capture(stream) as memory:
            buffers.append(gpupool.empty(5 * MIB, stream))
        del pools, memory, buffers
        gc.collect()
        assert own.live == {}
        stats = gpupool.memory_stats()
        assert (stats.pools, stats.reserved_bytes) == (before.pools, before.reserved_bytes)


def test_a_pool_released_before_its_allocations_end_loses_no_memory():
    pool_id = gpupool.graph_pool_handle()
    gpupool.torch.begin_allocate_to_pool(0, pool_id)
    gpupool.torch.release_pool(0, pool_id)
    with pytest.raises(gpupool.InvalidValue, match="was released"):
        gpupool.empty(8 * MIB)
    gpupool.torch.end_allocate_to_pool(0, pool_id)


@pytest.mark.parametrize("segments", [False, True])
def test_memory_cached_on_a_stream_is_given_up_during_a_capture_elsewhere(segments):
    """pytorch#159674, pytorch#175015: nothing cached was given up while somebody captured."""
    idle, pool, graphs = gpupool.MemPool(use_on_oom=True), *[gpupool.MemPool(segments=segments) for _ in range(2)]
    side, captured = gpupool.Stream(), gpupool.Stream()
    allocate_in(idle, 8 * MIB, side)
    leave(0)
    with entered_elsewhere(capturing(graphs, captured)):
        assert allocate_in(pool, 8 * MIB).pool_id == pool.id


def test_an_id_that_was_never_handed_out_is_refused():
    ahead = (0, gpupool.MemPool().id[1] + 1)
    with pytest.raises(gpupool.InvalidValue, match="not a pool's id"):
        gpupool.torch.begin_allocate_to_pool(0, ahead)
    assert gpupool.MemPool().id == ahead


def test_memory_of_an_inner_pool_that_a_graph_uses_is_kept_too():
    graphs, inner, stream = gpupool.MemPool(), gpupool.MemPool(), gpupool.Stream()
    with capturing(graphs, stream) as memory:
        address = allocate_in(inner, 4 * MIB, stream).ptr
    assert (graphs.use_count(), inner.use_count()) == (2, 2)
    assert allocate_in(inner, 4 * MIB, stream).ptr != address
    memory.reset()
    assert (graphs.use_count(), inner.use_count()) == (1, 1)
