"""Device memory from Python: buffers, allocators of one's own, callbacks, and what errors say."""

import ctypes

import gpupool
import pytest
from gpupool import _native
from own_memory import MIB, Allocator, allocate_in, c_functions, capturing, leave
from waiting import in_thread

pytestmark = pytest.mark.usefixtures("nothing_left")


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
    none = gpupool.empty(0)
    assert (none.ptr, none.nbytes) == (0, 0)
    none.free()


def test_a_stream_that_is_recorded_or_freed_on_keeps_a_block_back():
    stream, other = gpupool.Stream(), gpupool.Stream()
    recorded, freed = gpupool.empty(4 * MIB, stream), gpupool.empty(4 * MIB, stream)
    addresses = {recorded.ptr, freed.ptr}
    recorded.record_stream(other)
    work = _native.host_submit(other)
    freed.free(other)
    del recorded
    assert gpupool.memory_stats().waiting_blocks == 2
    kept = [gpupool.empty(4 * MIB, stream) for _ in range(2)]
    assert addresses.isdisjoint(buffer.ptr for buffer in kept)
    _native.host_complete(other, work)
    kept += [gpupool.empty(4 * MIB, stream) for _ in range(3)]
    assert addresses <= {buffer.ptr for buffer in kept}


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


def test_a_pool_stands_in_when_memory_has_run_out():
    pool = Allocator().pool(use_on_oom=True)
    address = allocate_in(pool, 8 * MIB).ptr
    leave(0)
    served = gpupool.empty(8 * MIB)
    assert (served.ptr, served.pool_id) == (address, pool.id)


def test_a_callback_is_asked_before_a_request_fails_and_does_not_ask_itself():
    def free_some(device, nbytes):
        asked.append((device, nbytes))
        with pytest.raises(gpupool.OutOfMemory):
            gpupool.empty(nbytes)
        gpupool.set_per_process_memory_fraction(1.0)
        return True

    asked, callback = [], gpupool.on_oom(free_some)
    gpupool.set_per_process_memory_fraction(0.0)
    gpupool.empty(MIB)
    assert asked == [(0, MIB)]
    callback.remove()
    gpupool.set_per_process_memory_fraction(0.0)
    with pytest.raises(gpupool.OutOfMemory):
        gpupool.empty(32 * MIB)
    assert len(asked) == 1


def test_the_c_interface_allocates_frees_and_fails_with_null():
    malloc, free = c_functions(gpupool.c_api.malloc, gpupool.c_api.free)
    address = malloc(MIB, 0, None)
    assert address % 512 == 0
    for _ in range(2):
        free(address, MIB, 0, None)
    assert [malloc(nbytes, 0, None) for nbytes in (1 << 62, 0)] == [None, None]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    assert ctypes.c_uint64.from_address(pointer(gpupool.c_api.capsule, b"gpupool.c_api")).value == 2


# ---- allocators of one's own ----


def test_what_an_allocator_gave_goes_back_to_it_once_nobody_holds_it():
    first, second, stream, captured = Allocator(), Allocator(1 << 45), gpupool.Stream(), gpupool.Stream()
    pools = [first.pool(), second.pool()]
    # The innermost scope says which is asked, and small blocks share what it gave.
    with pools[0]:
        outer = [gpupool.empty(100_000), gpupool.empty(100_000)]
        with pools[1]:
            inner = [gpupool.empty(4 * MIB, stream)]
        outer.append(gpupool.empty(2 * MIB))
    with capturing(pools[0], captured) as memory:
        gpupool.empty(6 * MIB, captured)
    assert first.calls == [(2 * MIB, 0, 0), (2 * MIB, 0, 0), (6 * MIB, 0, captured.ptr)]
    assert second.calls == [(4 * MIB, 0, stream.ptr)]
    assert [pool.snapshot()[0]["is_expandable"] for pool in pools] == [False, False]
    memory.reset()
    del memory, outer[1:]
    # What is free may be registered somewhere, so that it goes by the pool's own trim alone.
    assert (gpupool.empty_cache(), len(first.live)) == (0, 3)
    assert (pools[0].trim(), list(first.live)) == (8 * MIB, [outer[0].ptr])
    allocate_in(pools[1], 8 * MIB)
    pools.clear()
    assert (list(first.live), list(second.live)) == ([outer[0].ptr], [inner[0].ptr])
    # The last block takes it along, on whatever thread.
    for owner, last in ((first, outer), (second, inner)):
        in_thread(last.clear)
        assert owner.live == {}


@pytest.mark.parametrize("last", ["buffer", "pool"])
def test_an_exception_passes_what_is_freed_on_its_way(last):
    own = Allocator()
    alive = [own.pool()]
    buffer = allocate_in(alive[0], 1000)
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


@pytest.mark.parametrize("answer", [0, -1, None, "x"])
def test_an_allocator_that_answers_no_address(answer):
    pool = gpupool.MemPool((lambda size, device, stream: answer, lambda *_: None))
    with pytest.raises(gpupool.OutOfMemory, match="the pool's own allocator: malloc"):
        pool.empty(1000)
    assert pool.stats().reserved_bytes == 0


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


def test_a_stream_of_another_device_needs_peer_access():
    with gpupool.stream(gpupool.Stream(device=1)) as other:
        elsewhere = other
    own = gpupool.empty(MIB, gpupool.Stream(device=0))
    for call in (own.record_stream, own.free):
        with pytest.raises(gpupool.InvalidValue, match="enable_peer_access"):
            call(elsewhere)
    gpupool.enable_peer_access(0, 1)
    own.record_stream(elsewhere)


def beside_one_that_keeps_its_memory():
    keeper = gpupool.MemPool()
    allocate_in(keeper, 16 * MIB)
    leave(0)
    gpupool.empty(16 * MIB)


def without_pinned_memory():
    gpupool.set_pinned_limit(0)
    try:
        gpupool.empty_pinned(8 * MIB)
    finally:
        gpupool.set_pinned_limit(None)


def all_of_the_device():
    held = gpupool.empty(MIB)
    gpupool.empty(gpupool.memory_summary().devices[0].total_bytes)
    assert held


@pytest.mark.parametrize(
    ("ask", "advice"),
    [
        (
            lambda: gpupool.MemPool(limit=4 * MIB).empty(8 * MIB),
            r"whose limit is 4\.0 MiB.*The limit of pool \(0, \d+\) is reached: raise it, free live blocks of the pool",
        ),
        (
            beside_one_that_keeps_its_memory,
            r"fraction is used up: raise it \(set_per_process_memory_fraction\).*free memory until their trim\(\)",
        ),
        (lambda: gpupool.empty(2**62), "No device has that many bytes: request less"),
        (lambda: gpupool.MemPool((lambda *_: 0, print)).empty(8 * MIB), "Only that allocator supplies the pool"),
        (without_pinned_memory, r"The limit of pinned memory is reached: raise it \(set_pinned_limit\)"),
        # Only where the device itself has no more.
        (all_of_the_device, r"^(?!.*limit).*free_all_blocks"),
    ],
)
def test_the_error_advises_what_helps_against_its_cause(ask, advice):
    with pytest.raises(gpupool.OutOfMemory, match=f"(?s){advice}") as raised:
        ask()
    assert ("free_all_blocks" in str(raised.value)) == ("free_all_blocks" in advice)
