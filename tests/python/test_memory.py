"""Device memory on the simulated device: buffers, pools, scopes, captures, limits and the C interface."""

import ctypes
import gc
import sys
import threading

import gpupool
import pytest
from gpupool import _native
from own_memory import MIB, Allocator
from waiting import wait_for_end


@pytest.fixture(autouse=True)
def _nothing_left():
    gc.collect()
    gpupool.empty_cache()
    before = gpupool.memory_stats()
    yield
    gpupool.set_per_process_memory_fraction(1.0)
    gc.collect()
    gpupool.empty_cache()
    after = gpupool.memory_stats()
    assert (after.live_blocks, after.reserved_bytes) == (before.live_blocks, before.reserved_bytes)


def test_a_buffer_is_aligned_memory_that_comes_back():
    before = gpupool.memory_stats()
    buffers = [gpupool.empty(size) for size in (1, 513, 70_000, 3 * MIB)]
    assert all(buffer.ptr % 512 == 0 for buffer in buffers)
    assert len({buffer.ptr for buffer in buffers}) == 4
    assert gpupool.memory_stats().live_blocks == before.live_blocks + 4
    ctypes.memset(buffers[3].ptr, 7, 3 * MIB)
    assert ctypes.string_at(buffers[3].ptr, 3) == b"\x07\x07\x07"
    del buffers
    assert gpupool.memory_stats().live_blocks == before.live_blocks


def test_zero_bytes_take_no_memory():
    buffer = gpupool.empty(0)
    assert (buffer.ptr, buffer.nbytes) == (0, 0)
    buffer.free()


@pytest.mark.parametrize("size", [-1, 2**64])
def test_sizes_that_cannot_be(size):
    with pytest.raises(gpupool.InvalidValue, match=rf"^nbytes is {size}: give a whole number"):
        gpupool.empty(size)


def test_a_size_beyond_the_device_is_out_of_memory():
    with pytest.raises(gpupool.OutOfMemory, match=r"tried to allocate .* from pool \(0, 0\)") as raised:
        gpupool.empty(2**63)
    error = raised.value
    assert isinstance(error, MemoryError)
    assert (error.device, error.requested_bytes, error.library) == (0, 2**63, "gpupool")
    assert 0 < error.free_bytes <= error.total_bytes


def test_a_buffer_is_freed_once_and_then_says_so():
    buffer = gpupool.empty(MIB)
    buffer.free()
    with pytest.raises(gpupool.InvalidValue, match="freed before"):
        buffer.free()
    with pytest.raises(gpupool.InvalidValue, match="was freed"):
        _ = buffer.ptr
    assert "freed" in repr(buffer)


def test_memory_freed_on_another_stream_waits_for_it():
    stream, other = gpupool.Stream(), gpupool.Stream()
    work = _native.host_submit(other)
    buffer = gpupool.empty(4 * MIB, stream)
    address = buffer.ptr
    buffer.free(other)
    next_one = gpupool.empty(4 * MIB, stream)
    assert next_one.ptr != address
    _native.host_complete(other, work)
    # The thread's cache looks when it has nothing else.
    assert address in [gpupool.empty(4 * MIB, stream).ptr, *[gpupool.empty(4 * MIB, stream).ptr for _ in range(2)]]


def test_a_recorded_stream_keeps_a_block_back():
    stream, other = gpupool.Stream(), gpupool.Stream()
    buffer = gpupool.empty(4 * MIB, stream)
    buffer.record_stream(other)
    work = _native.host_submit(other)
    address = buffer.ptr
    del buffer
    assert gpupool.memory_stats().waiting_blocks == 1
    kept = gpupool.empty(4 * MIB, stream)
    assert kept.ptr != address
    _native.host_complete(other, work)
    del kept


def test_simulated_memory_is_no_cuda_array_but_dlpack_of_the_cpu():
    buffer = gpupool.empty(16)
    assert not hasattr(buffer, "__cuda_array_interface__")
    assert buffer.__dlpack_device__() == (1, 0)
    assert "dltensor_versioned" in repr(buffer.__dlpack__(max_version=(1, 0)))
    assert '"dltensor"' in repr(buffer.__dlpack__())
    with pytest.raises(BufferError):
        buffer.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(2, 0))


def test_an_exported_buffer_lives_as_long_as_its_capsule():
    before = gpupool.memory_stats().live_blocks
    buffer = gpupool.empty(MIB)
    capsule = buffer.__dlpack__(max_version=(1, 0))
    with pytest.raises(gpupool.InvalidValue, match="shared by DLPack"):
        buffer.free()
    del buffer
    assert gpupool.memory_stats().live_blocks == before + 1
    del capsule
    assert gpupool.memory_stats().live_blocks == before


def test_pools_have_ids_and_use_counts():
    first, second = gpupool.MemPool(), gpupool.MemPool()
    assert first.id[0] == 0
    assert second.id[1] > first.id[1]
    assert first.use_count() == 1
    with gpupool.use_mem_pool(first):
        assert first.use_count() == 2
        with gpupool.use_mem_pool(first):
            assert first.use_count() == 3
    assert first.use_count() == 1
    with pytest.raises(RuntimeError), gpupool.use_mem_pool(first):
        raise RuntimeError
    assert first.use_count() == 1


def test_the_innermost_scope_serves():
    outer, inner = gpupool.MemPool(), gpupool.MemPool()
    with gpupool.use_mem_pool(outer):
        with gpupool.use_mem_pool(inner):
            assert gpupool.empty(MIB).pool_id == inner.id
        assert gpupool.empty(MIB).pool_id == outer.id
    assert gpupool.empty(MIB).pool_id == (0, 0)


def test_threads_do_not_inherit_a_scope_but_a_token_takes_them_in():
    pool, found = gpupool.MemPool(), []

    def work(token):
        found.append(gpupool.empty(MIB).pool_id)
        with gpupool.use_mem_pool(token):
            found.append(gpupool.empty(MIB).pool_id)

    with gpupool.use_mem_pool(pool):
        thread = threading.Thread(target=work, args=(pool.token(),))
        thread.start()
        thread.join()
    assert found == [(0, 0), pool.id]


def test_a_scope_left_on_another_thread_is_refused_and_stays():
    pool, errors = gpupool.MemPool(), []
    scope = gpupool.use_mem_pool(pool)
    scope.__enter__()

    def leave():
        try:
            scope.__exit__(None, None, None)
        except gpupool.InvalidValue as error:
            errors.append(error)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert gpupool.empty(MIB).pool_id == pool.id
    scope.__exit__(None, None, None)


def test_a_limit_is_kept_and_can_be_raised():
    pool = gpupool.MemPool(limit=4 * MIB)
    with gpupool.use_mem_pool(pool):
        with pytest.raises(gpupool.OutOfMemory, match=r"whose limit is 4\.0 MiB"):
            gpupool.empty(8 * MIB)
        pool.limit = None
        assert gpupool.empty(8 * MIB).pool_id == pool.id


def test_blocks_outlive_their_pool():
    before = gpupool.memory_stats().pools
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        buffer = gpupool.empty(3 * MIB)
    del pool
    gc.collect()
    ctypes.memset(buffer.ptr, 1, 3 * MIB)
    assert gpupool.memory_stats().pools == before + 1
    del buffer
    assert gpupool.memory_stats().pools == before


def test_an_own_allocator_supplies_and_takes_back():
    own = Allocator()
    pool = gpupool.MemPool(allocator=(own.malloc, own.free))
    with gpupool.use_mem_pool(pool):
        first = gpupool.empty(100_000)
        second = gpupool.empty(100_000)
        assert len(own.calls) == 1
        assert own.calls[0][1:] == (0, 0)
        third = gpupool.empty(2 * MIB)
        assert len(own.calls) == 2
    del first, second, third
    assert pool.trim() > 0
    assert own.live == {}


def test_an_own_allocator_that_fails_is_the_cause():
    def malloc(size, device, stream):
        raise RuntimeError("no")

    pool = gpupool.MemPool(allocator=(malloc, lambda *_: None))
    with gpupool.use_mem_pool(pool), pytest.raises(gpupool.OutOfMemory) as raised:
        gpupool.empty(MIB)
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert pool.stats().reserved_bytes == 0


@pytest.mark.parametrize("stands_in", [True, False])
def test_a_pool_stands_in_when_memory_has_run_out(stands_in):
    own = Allocator()
    pool = gpupool.MemPool(allocator=(own.malloc, own.free), use_on_oom=stands_in)
    with gpupool.use_mem_pool(pool):
        held = gpupool.empty(8 * MIB)
    address = held.ptr
    del held
    gpupool.set_per_process_memory_fraction(0.0)
    if stands_in:
        served = gpupool.empty(8 * MIB)
        assert (served.ptr, served.pool_id) == (address, pool.id)
    else:
        with pytest.raises(gpupool.OutOfMemory):
            gpupool.empty(8 * MIB)


def test_a_graphs_memory_is_handed_out_again_only_after_its_reset():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    with pool.capture(stream) as memory:
        buffer = gpupool.empty(4 * MIB, stream)
        address = buffer.ptr
    del buffer
    assert pool.use_count() == 2
    with gpupool.use_mem_pool(pool):
        eager = gpupool.empty(4 * MIB, stream)
    assert eager.ptr != address
    assert pool.trim() == 0
    memory.reset()
    assert pool.use_count() == 1
    assert pool.trim() > 0


def test_a_failed_capture_releases_everything():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    capture = pool.capture(stream)
    capture.__enter__()
    gpupool.empty(4 * MIB, stream)
    capture.__exit__(RuntimeError, RuntimeError(), None)
    assert pool.use_count() == 1
    pool.trim()
    assert pool.stats().reserved_bytes == 0


def test_pools_by_id():
    pool_id = gpupool.graph_pool_handle()
    gpupool.torch.begin_allocate_to_pool(0, pool_id)
    assert gpupool.empty(MIB).pool_id == pool_id
    gpupool.torch.end_allocate_to_pool(0, pool_id)
    assert gpupool.torch.pool_use_count(0, pool_id) == 1
    gpupool.torch.release_pool(0, pool_id)
    with pytest.raises(gpupool.InvalidValue, match=r"pool \(0, \d+\) on device 0 is gone"):
        gpupool.torch.pool_use_count(0, pool_id)
    with pytest.raises(gpupool.InvalidValue, match="is gone"):
        gpupool.torch.end_allocate_to_pool(0, pool_id)
    with pytest.raises(gpupool.InvalidValue):
        gpupool.torch.begin_allocate_to_pool(0, (0, 0))


def test_empty_cache_works_inside_a_scope():
    with gpupool.use_mem_pool(gpupool.MemPool()):
        del_me = gpupool.empty(8 * MIB)
        del del_me
        assert gpupool.empty_cache() >= 8 * MIB


def test_a_callback_is_asked_before_a_request_fails():
    gpupool.set_per_process_memory_fraction(0.0)
    asked = []

    def free_some(device, nbytes):
        asked.append((device, nbytes))
        gpupool.set_per_process_memory_fraction(1.0)
        return True

    callback = gpupool.on_oom(free_some)
    gpupool.empty(MIB)
    assert asked == [(0, MIB)]
    callback.remove()
    gpupool.set_per_process_memory_fraction(0.0)
    with pytest.raises(gpupool.OutOfMemory):
        gpupool.empty(32 * MIB)
    assert len(asked) == 1


def test_a_snapshot_has_pytorchs_form():
    buffer = gpupool.empty(MIB)
    segments = gpupool.memory_snapshot()["segments"]
    block = next(b for segment in segments for b in segment["blocks"] if b["address"] == buffer.ptr)
    assert (block["requested_size"], block["state"]) == (MIB, "active_allocated")


def test_the_c_interface_allocates_frees_and_fails_with_null():
    api = gpupool.c_api
    malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(api.malloc)
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(api.free)
    address = malloc(MIB, 0, None)
    assert address % 512 == 0
    free(address, MIB, 0, None)
    free(address, MIB, 0, None)
    assert malloc(1 << 62, 0, None) is None
    assert malloc(0, 0, None) is None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    assert ctypes.c_uint64.from_address(pointer(api.capsule, b"gpupool.c_api")).value == 2


@pytest.mark.parametrize("last", ["buffer", "pool"])
def test_an_exception_passes_what_is_freed_on_its_way(last):
    own = Allocator()
    alive = [gpupool.MemPool((own.malloc, own.free))]
    with gpupool.use_mem_pool(alive[0]):
        buffer = gpupool.empty(1000)
    if last == "buffer":
        alive = [buffer]
    del buffer
    assert own.live
    with pytest.raises(ZeroDivisionError):
        # The interpreter lets go of the first argument while the exception of the second is set.
        print(alive.pop(), 1 // 0)
    assert own.live == {}


@pytest.mark.parametrize("pair", [(-1, 5), (5, 2**64), (0, 5), (5, int), [int, int], (int,), 5])
def test_allocators_that_cannot_be(pair):
    with pytest.raises(gpupool.InvalidValue, match="allocator"):
        gpupool.MemPool(pair)


def test_an_allocator_that_gives_memory_twice_takes_none_of_it_away():
    own = Allocator()
    address = own.malloc(2 * MIB, 0, 0)
    pool = gpupool.MemPool((lambda size, device, stream: address, own.free))
    with gpupool.use_mem_pool(pool):
        buffer = gpupool.empty(2 * MIB)
        with pytest.raises(gpupool.InvalidValue, match="overlaps memory that is still in use"):
            gpupool.empty(2 * MIB)
    # It goes back once, and only when nobody holds it.
    assert own.live == {address: 2 * MIB}
    del buffer
    assert pool.trim() == 2 * MIB
    assert own.live == {}


def test_an_allocator_that_aligns_too_little_gets_its_memory_back():
    own = Allocator()
    own.next += 8
    pool = gpupool.MemPool((own.malloc, own.free))
    with gpupool.use_mem_pool(pool), pytest.raises(gpupool.InvalidValue, match="not a multiple of 512"):
        gpupool.empty(1000)
    assert own.calls
    assert own.live == {}


@pytest.mark.parametrize("answer", [0, -1, None, "x"])
def test_an_allocator_that_answers_no_address(answer):
    pool = gpupool.MemPool((lambda size, device, stream: answer, lambda *_: None))
    with gpupool.use_mem_pool(pool), pytest.raises(gpupool.OutOfMemory, match="the pool's own allocator: malloc"):
        gpupool.empty(1000)
    assert pool.stats().reserved_bytes == 0


def test_a_free_that_raises_is_reported_and_the_memory_counts_as_returned(monkeypatch):
    own = Allocator()
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.exc_type))

    def free(*_):
        raise KeyError

    pool = gpupool.MemPool((own.malloc, free))
    with gpupool.use_mem_pool(pool):
        gpupool.empty(1000)
    assert pool.trim() == 2 * MIB
    assert reported == [KeyError]
    assert pool.stats().reserved_bytes == 0


def test_numpy_reads_a_buffer_without_a_copy():
    numpy = pytest.importorskip("numpy")
    buffer = gpupool.empty(1000)
    array = numpy.from_dlpack(buffer)
    array[:] = 7
    assert (array.shape, array.dtype, array.ctypes.data) == ((1000,), numpy.uint8, buffer.ptr)
    assert ctypes.string_at(buffer.ptr + 999, 1) == b"\x07"
    with pytest.raises(gpupool.InvalidValue, match="shared by DLPack"):
        buffer.free()
    with pytest.raises(BufferError, match="not copied"):
        numpy.from_dlpack(buffer, copy=True)
    live = gpupool.memory_stats().live_blocks
    del buffer
    gc.collect()
    assert gpupool.memory_stats().live_blocks == live
    # The last share may end on any thread.
    shares = [array]
    del array
    thread = threading.Thread(target=shares.clear)
    thread.start()
    thread.join()
    assert gpupool.memory_stats().live_blocks == live - 1
    assert numpy.from_dlpack(gpupool.empty(0)).shape == (0,)


def test_an_own_allocator_may_use_gpupool_but_not_its_own_pool():
    def malloc(size, device, stream):
        if not own_pool:
            buffer = gpupool.empty(size, stream)
        else:
            with gpupool.use_mem_pool(tokens[0]):
                buffer = gpupool.empty(size, stream)
        held.append(buffer)
        pools.append(buffer.pool_id)
        return memory.malloc(size, device, stream)

    held, pools, memory, own_pool = [], [], Allocator(), False
    pool = gpupool.MemPool(allocator=(malloc, memory.free))
    # The functions are the pool's, so that to name the pool there would keep it for ever.
    tokens = [pool.token()]
    with gpupool.use_mem_pool(pool):
        buffer = gpupool.empty(MIB)
        # Also after the allocator the scope serves.
        assert (buffer.pool_id, pools) == (pool.id, [(0, 0)])
        own_pool = True
        with pytest.raises(gpupool.OutOfMemory) as raised:
            gpupool.empty(8 * MIB)
    assert isinstance(raised.value.__cause__, gpupool.Error)
    assert "itself" in str(raised.value.__cause__)
    tokens.clear()


def test_a_callback_that_allocates_does_not_ask_itself():
    def allocate(device, nbytes):
        asked.append(nbytes)
        with pytest.raises(gpupool.OutOfMemory):
            gpupool.empty(nbytes)
        return False

    asked, callback = [], gpupool.on_oom(lambda device, nbytes: allocate(device, nbytes))
    gpupool.set_per_process_memory_fraction(0.0)
    with pytest.raises(gpupool.OutOfMemory):
        gpupool.empty(32 * MIB)
    assert asked == [32 * MIB]
    callback.remove()


def test_a_refused_request_leaves_no_mark_on_the_peak():
    pool = gpupool.MemPool(limit=64 * MIB)
    with gpupool.use_mem_pool(pool):
        first = gpupool.empty(16 * MIB)
        peak = pool.stats().peak_reserved_bytes
        gpupool.set_per_process_memory_fraction(0.0)
        with pytest.raises(gpupool.OutOfMemory):
            gpupool.empty(32 * MIB)
    assert pool.stats().peak_reserved_bytes == peak
    assert first.nbytes == 16 * MIB


def test_a_thread_that_ends_inside_a_scope_leaves_it():
    pool = gpupool.MemPool()
    scope = gpupool.use_mem_pool(pool)
    capture = pool.capture(gpupool.Stream())

    def enter():
        scope.__enter__()
        capture.__enter__()
        counts.append(pool.use_count())

    counts = []
    thread = threading.Thread(target=enter)
    thread.start()
    wait_for_end(thread)
    assert (counts, pool.use_count()) == ([3], 1)
    # What is dropped without having been left on its own thread is left there too.
    dropped = gpupool.use_mem_pool(pool)
    dropped.__enter__()
    del dropped
    assert (pool.use_count(), gpupool.empty(MIB).pool_id) == (1, (0, 0))


def test_ending_a_pool_by_its_id_leaves_its_scopes():
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        with pytest.raises(gpupool.InvalidValue, match="does not allocate"):
            gpupool.torch.end_allocate_to_pool(0, pool.id)
        with pytest.raises(gpupool.InvalidValue, match="no use to release"):
            gpupool.torch.release_pool(0, pool.id)
        assert gpupool.empty(MIB).pool_id == pool.id
    assert pool.use_count() == 1


@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_out_of_range_are_invalid_values(number):
    for call in (
        lambda: gpupool.MemPool(limit=number),
        lambda: setattr(gpupool.MemPool(), "limit", number),
        lambda: gpupool.torch.begin_allocate_to_pool(0, (0, number)),
    ):
        with pytest.raises(gpupool.InvalidValue, match=f"is {number}: give a whole number"):
            call()


def test_a_stream_of_another_device_needs_peer_access():
    with gpupool.stream(gpupool.Stream(device=1)) as other:
        elsewhere = other
    own = gpupool.empty(MIB, gpupool.Stream(device=0))
    for call in (own.record_stream, own.free):
        with pytest.raises(gpupool.InvalidValue, match="enable_peer_access"):
            call(elsewhere)
    gpupool.enable_peer_access(0, 1)
    stream = gpupool.Stream(device=0)
    buffer = gpupool.empty(MIB, stream)
    address = buffer.ptr
    submitted = _native.host_submit(elsewhere)
    buffer.record_stream(elsewhere)
    del buffer
    waiting = gpupool.empty(MIB, stream)
    assert waiting.ptr != address
    _native.host_complete(elsewhere, submitted)


def advice_of(request):
    """Return what the error of a request for memory says."""
    with pytest.raises(gpupool.OutOfMemory) as raised:
        request()
    return str(raised.value)


def test_the_error_advises_what_helps_against_its_cause():
    elsewhere = "free_all_blocks"
    pool = gpupool.MemPool(limit=4 * MIB)
    told = advice_of(lambda: pool.empty(8 * MIB))
    assert f"The limit of pool {pool.id} is reached: raise it, free live blocks of the pool" in told
    assert elsewhere not in told
    gpupool.set_per_process_memory_fraction(0.0)
    told = advice_of(lambda: gpupool.empty(8 * MIB))
    assert "memory fraction is used up: raise it (set_per_process_memory_fraction)" in told
    assert elsewhere not in told
    gpupool.set_per_process_memory_fraction(1.0)
    told = advice_of(lambda: gpupool.empty(2**62))
    assert "No device has that many bytes: request less" in told
    assert elsewhere not in told
    own = gpupool.MemPool((lambda size, device, stream: 0, lambda *arguments: None))
    told = advice_of(lambda: own.empty(8 * MIB))
    assert "Only that allocator supplies the pool" in told
    assert elsewhere not in told
    gpupool.set_pinned_limit(0)
    told = advice_of(lambda: gpupool.empty_pinned(8 * MIB))
    gpupool.set_pinned_limit(None)
    assert "The limit of pinned memory is reached: raise it (set_pinned_limit)" in told
    assert elsewhere not in told
    # Only where the device itself has no more.
    held = gpupool.empty(MIB)
    told = advice_of(lambda: gpupool.empty(gpupool.memory_summary().devices[0].total_bytes))
    del held
    assert elsewhere in told
    assert "limit" not in told


def test_a_pool_allocates_without_a_block():
    pool, other = gpupool.MemPool(), gpupool.MemPool(device=1)
    with gpupool.use_mem_pool(gpupool.MemPool()) as around:
        buffer = pool.empty(1000)
        assert (buffer.pool_id, buffer.nbytes, buffer.device) == (pool.id, 1000, 0)
        assert gpupool.empty(1000).pool_id == around.id
    assert other.empty(1000).device == 1
    stream = gpupool.Stream(1)
    assert other.empty(1000, stream).stream == stream.ptr
    assert pool.use_count() == 1
    with pytest.raises(gpupool.InvalidValue, match="belongs to device 1, not to device 0"):
        pool.empty(1000, stream)
    pool.close()
    with pytest.raises(gpupool.InvalidValue, match="closed"):
        pool.empty(1000)
    assert pool.use_count() == 1
