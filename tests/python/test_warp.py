"""Warp's arrays in gpupool's memory: a double of Warp over simulated streams, whose work is done when told to."""

import ctypes
import gc
import importlib
import inspect
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import gpupool
import pytest
from forking import in_child
from gpupool import _native
from gpupool.warp import _allocator
from own_memory import MIB, leave
from running import run_program
from waiting import wait_until

DOUBLES = Path(__file__).parents[1] / "doubles"


@pytest.fixture
def warp(monkeypatch, nothing_left):
    """Return the double of Warp, with gpupool's allocators taken out again after the test."""
    monkeypatch.syspath_prepend(str(DOUBLES))
    monkeypatch.delitem(sys.modules, "warp", raising=False)
    monkeypatch.setattr(gpupool.warp, "runtime", lambda: "cuda")
    monkeypatch.setattr(gpupool.warp, "_allocators", {})
    import warp

    warp.init()
    yield warp
    gpupool.warp.disable()
    for device in warp.get_cuda_devices():
        assert device.get_allocator() is device.mempool_allocator
        assert device.context_guard.depth == 0
    sys.modules.pop("warp")


@pytest.fixture
def wp(warp):
    """Return the double of Warp, enabled."""
    gpupool.warp.enable()
    return warp


def live(device=0):
    return gpupool.memory_stats(device).live_blocks


def submit_fill(stream, byte=7):
    """Let the stream fill a byte, and be told that all its work is done; return that byte's address and its owner."""
    buffer = gpupool.empty(1, stream)
    buffer.fill(byte, stream)
    _native.host_complete(stream, stream.submit())
    return buffer


def byte_at(buffer):
    return ctypes.string_at(buffer.ptr, 1)[0]


def test_arrays_are_live_until_they_die(wp):
    array = wp.empty(1000)
    stats = gpupool.memory_stats()
    assert (stats.live_blocks, stats.requested_bytes) == (1, 1000)
    assert wp.empty(0).ptr is None
    guard = wp.get_device().context_guard
    entered = guard.entered
    del array
    assert live() == 0
    # Warp's own allocator makes a context current for this.
    assert guard.entered == entered


def test_each_device_has_its_own(wp):
    array = wp.empty(MIB, "cuda:1")
    assert (live(0), live(1)) == (0, 1)
    del array
    assert live(1) == 0


def test_where_the_allocator_of_one_device_cannot_be_set_none_is(warp, monkeypatch):
    own = warp.set_device_allocator

    def refuse(device, allocator):
        if device.ordinal == 1 and allocator is not None:
            raise RuntimeError("the second device is lost")
        own(device, allocator)

    monkeypatch.setattr(warp, "set_device_allocator", refuse)
    with pytest.raises(RuntimeError, match="is lost"):
        gpupool.warp.enable()
    assert not gpupool.warp.is_enabled()
    for device in warp.get_cuda_devices():
        assert device.get_allocator() is device.mempool_allocator


def test_snapshots_name_the_code_that_made_an_array(wp):
    gpupool.record_memory_history("all")
    try:
        array = wp.empty(MIB)
        segments = gpupool.memory_snapshot()["segments"]
        blocks = [block for segment in segments for block in segment["blocks"] if block["address"] == array.ptr]
        names = [frame["name"] for frame in blocks[0]["frames"]]
        assert "test_snapshots_name_the_code_that_made_an_array" in names
    finally:
        gpupool.record_memory_history(None)


def test_memory_is_of_the_current_stream(wp):
    stream = wp.Stream("cuda:0")
    with wp.ScopedStream(stream):
        array = wp.empty(MIB)
    assert gpupool.memory_snapshot()["segments"][0]["stream"] == stream.cuda_stream
    del array


def test_memory_is_used_again_behind_all_blocking_streams(wp):
    stream = wp.get_device("cuda:0").stream
    array = wp.empty(4 * MIB)
    address = array.ptr
    # On a GPU work of the legacy default stream follows that of all blocking streams.
    work = _native.host_submit(1)
    del array
    array = wp.empty(4 * MIB)
    assert array.ptr == address
    filled = submit_fill(stream)
    assert byte_at(filled) != 7
    _native.host_complete(1, work)
    _native.host_complete(stream, stream.submit())
    assert byte_at(filled) == 7


def test_a_stream_lives_as_long_as_memory_that_follows_it(wp):
    with wp.ScopedStream(wp.Stream("cuda:0")):
        array = wp.empty(MIB)
    stream = weakref.ref(gpupool.warp._allocators[0]._memory[array.ptr][1])
    assert stream() is not None
    del array
    gc.collect()
    assert stream() is None
    assert live() == 0


def test_a_stream_of_other_code_may_be_gone_when_an_array_dies(wp):
    raw = _native.host_create_stream(0)
    with wp.ScopedStream(wp.Stream("cuda:0", cuda_stream=raw)):
        array = wp.empty(4 * MIB)
        address = array.ptr
        del array
        array = wp.empty(4 * MIB)
        assert array.ptr == address
    _native.host_destroy_stream(raw)
    # Any call with the stream would be refused. The memory waits for what other streams have to do.
    work = _native.host_submit(1)
    del array
    gpupool.empty_cache()
    assert live() == 1
    _native.host_complete(1, work)
    gpupool.empty_cache()
    assert live() == 0


def test_the_legacy_default_stream_may_be_the_current_one(wp):
    with wp.ScopedStream(wp.Stream("cuda:0", cuda_stream=None)):
        array = wp.empty(MIB)
        address = array.ptr
        del array
        array = wp.empty(MIB)
    assert array.ptr == address
    del array
    assert live() == 0


def test_an_array_that_dies_beside_a_capture_does_not_spoil_it(wp):
    device, other = wp.get_device("cuda:0"), wp.Stream("cuda:0")
    array = wp.empty(4 * MIB)
    _native.host_begin_capture(other)
    del array
    assert live() == 1
    # Raises if the capture was spoilt.
    _native.host_end_capture(other)
    array = wp.empty(MIB, device)
    assert live() == 1
    del array


def test_what_died_beside_a_capture_goes_before_memory_runs_out(wp):
    other = wp.Stream("cuda:0")
    array = wp.empty(32 * MIB)
    _native.host_begin_capture(other)
    del array
    _native.host_end_capture(other)
    leave(0)
    buffer = gpupool.empty(32 * MIB)
    assert live() == 1
    del buffer


def test_a_graphs_memory_is_its_own_until_it_is_gone(wp):
    # The default pool has memory.
    wp.empty(MIB)
    before = gpupool.memory_stats().pools
    with wp.ScopedCapture() as capture:
        array = wp.empty(4 * MIB)
        addresses = {array.ptr}
        del array
        array = wp.empty(4 * MIB)
        addresses.add(array.ptr)
    assert len(addresses) == 2
    del array
    others = [wp.empty(4 * MIB) for _ in range(4)]
    assert not addresses & {other.ptr for other in others}
    assert live() == 6
    capture.graph = None
    assert live() == 4
    wait_until(lambda: gpupool.memory_stats().pools <= before, "the graph's pool is gone")
    del others


def test_a_graphs_memory_is_none_that_work_before_it_uses(wp):
    array = wp.empty(4 * MIB)
    used = range(array.ptr, array.ptr + 4 * MIB)
    stream = wp.get_device().stream
    work = stream.submit()
    # On another stream the graph would not wait for that work.
    del array
    with wp.ScopedCapture() as capture:
        arrays = [wp.empty(MIB) for _ in range(8)]
    assert not [array for array in arrays if array.ptr in used]
    del arrays
    capture.graph = None
    _native.host_complete(stream.cuda_stream, work)


def test_an_array_of_a_capture_may_outlive_the_graph(wp):
    with wp.ScopedCapture() as capture:
        array = wp.empty(4 * MIB)
    address = array.ptr
    capture.graph = None
    assert live() == 1
    others = [wp.empty(4 * MIB) for _ in range(4)]
    assert address not in {other.ptr for other in others}
    del others, array
    assert live() == 0


def test_a_graph_may_end_beside_another_capture(wp):
    with wp.ScopedCapture() as first:
        array = wp.empty(4 * MIB)
    del array
    with wp.ScopedCapture() as second:
        first.graph = None
        assert live() == 1
    array = wp.empty(1000)
    assert live() == 1
    second.graph = None
    del array


def test_a_stream_that_joined_a_capture_allocates_for_its_graph(wp):
    joined = wp.Stream("cuda:0")
    with wp.ScopedCapture() as capture:
        # On a GPU it joins by waiting for an event.
        _native.host_begin_capture(joined)
        with wp.ScopedStream(joined):
            array = wp.empty(4 * MIB)
        _native.host_end_capture(joined)
    del array
    assert live() == 1
    capture.graph = None
    wp.empty(1)
    assert live() == 0


def test_a_capture_that_warp_does_not_know_needs_a_pool(wp):
    stream = wp.get_device("cuda:0").stream
    with (
        wp.ScopedCapture() as capture,
        wp.capture_paused(),
        pytest.raises(gpupool.InvalidValue, match="before, or put"),
    ):
        wp.empty(MIB)
    capture.graph = None
    pool = gpupool.MemPool()
    with wp.ScopedCapture(), wp.capture_paused(), pool.capture(stream) as memory:
        array = wp.empty(MIB)
    assert pool.stats().live_blocks == 1
    memory.reset()
    del array
    wp.empty(1)
    assert live() == 0


def test_a_capture_in_a_pool_takes_the_pools_memory(wp):
    pool, stream = gpupool.MemPool(), wp.get_device("cuda:0").stream
    with pool.capture(stream) as memory, wp.ScopedCapture() as capture:
        array = wp.empty(MIB)
    assert pool.stats().live_blocks == 1
    del array
    assert pool.stats().live_blocks == 1
    capture.graph = None
    memory.reset()
    assert pool.stats().live_blocks == 0


def test_scopes_of_pools(warp):
    pool, other = gpupool.MemPool(), gpupool.MemPool()
    with gpupool.warp.using(pool) as given:
        assert given is pool
        inside = warp.empty(MIB)
        with gpupool.use_mem_pool(other):
            innermost = warp.empty(MIB)
        with ThreadPoolExecutor(1) as executor:
            elsewhere = executor.submit(warp.empty, MIB).result()
    outside = warp.empty(MIB)
    assert (pool.stats().live_blocks, other.stats().live_blocks, live()) == (1, 1, 3)
    assert list(warp.get_device().mempool_allocator.live) == [outside.ptr]
    del inside, innermost, elsewhere, outside
    with pytest.raises(gpupool.InvalidValue), gpupool.warp.using(3):
        pass


def test_threads_enter_a_pool_by_its_token(wp):
    pool = gpupool.MemPool()

    def work(_):
        with gpupool.warp.using(pool.token()):
            return [wp.empty(1000 + step) for step in range(50)][-1]

    with ThreadPoolExecutor(8) as executor:
        arrays = list(executor.map(work, range(16)))
    assert pool.stats().live_blocks == 16
    del arrays
    assert live() == 0


def test_blocks_and_enabling_nest_as_they_like(warp):
    device = warp.get_device()
    with gpupool.warp.using():
        with gpupool.warp.using():
            gpupool.warp.enable()
            gpupool.warp.disable()
        assert device.get_allocator() is not device.mempool_allocator
        gpupool.warp.enable()
    assert device.get_allocator() is not device.mempool_allocator
    assert gpupool.warp.is_enabled()
    gpupool.warp.disable()
    gpupool.warp.disable()
    assert not gpupool.warp.is_enabled()


def test_arrays_keep_the_memory_that_they_have(warp):
    own = warp.empty(MIB)
    gpupool.warp.enable()
    array = warp.empty(MIB)
    del own
    assert warp.get_device().mempool_allocator.live == {}
    gpupool.warp.disable()
    assert live() == 1
    del array
    assert live() == 0


def test_other_allocators_stay_or_come_back(warp):
    first, second = (warp.CudaDefaultAllocator(number << 50) for number in (1, 2))
    devices = warp.get_cuda_devices()
    warp.set_device_allocator("cuda:1", first)
    gpupool.warp.enable()
    gpupool.warp.disable()
    assert [device._custom_allocator for device in devices] == [None, first]
    gpupool.warp.enable()
    warp.set_cuda_allocator(second)
    gpupool.warp.disable()
    assert [device._custom_allocator for device in devices] == [second, second]
    warp.set_cuda_allocator(None)


def test_warps_own_block_is_left_to_it(wp):
    device = wp.get_device()
    with wp.ScopedAllocator("cuda:0", None):
        array = wp.empty(MIB)
        assert (live(), len(device.mempool_allocator.live)) == (0, 1)
    array = wp.empty(MIB)
    assert (live(), len(device.mempool_allocator.live)) == (1, 0)
    del array


def test_out_of_memory_is_warps_error_and_comes_after_cycles_were_collected(wp):
    leave(40 * MIB)
    array = wp.empty(32 * MIB)
    array.itself = array
    del array
    array = wp.empty(32 * MIB)
    with pytest.raises(RuntimeError, match="Failed to allocate 33554432 bytes on device 'cuda:0': ") as raised:
        wp.empty(32 * MIB)
    assert isinstance(raised.value.__cause__, gpupool.OutOfMemory)
    assert live() == 1
    del array


def test_what_was_not_allocated_is_not_freed(wp):
    allocator = wp.get_device_allocator("cuda:0")
    allocator.deallocate(0, 0)
    with pytest.raises(gpupool.InvalidValue, match=r"0x7b is no memory that <gpupool's memory of cuda:0> returned"):
        allocator.deallocate(123, 1000)


def test_memory_that_the_driver_cannot_order_is_kept(wp):
    array = wp.empty(MIB)
    _native.host_inject("EventRecord")
    del array
    assert live() == 1
    array = wp.empty(MIB)
    assert live() == 1
    del array


def test_a_forked_child_frees_nothing(wp):
    array = wp.empty(MIB)
    in_child(partial(array.deleter, array.ptr, array.capacity))
    assert live() == 1
    del array
    assert live() == 0


def test_calls_without_a_stream_use_warps_current_one(wp):
    stream = wp.Stream("cuda:0")
    with wp.ScopedStream(stream):
        assert gpupool.current_stream().ptr == stream.cuda_stream
    assert gpupool.current_stream(1).ptr == wp.get_device("cuda:1").stream.cuda_stream
    gpupool.warp.disable()
    assert gpupool.current_stream().ptr == 0


def test_the_allocators_of_enabled_devices_are_told(warp):
    def told():
        (known,) = (each for each in gpupool.info().frameworks if each.name == "warp")
        return known.uses_gpupool, known.allocator

    assert told() == (False, "Warp's own")
    gpupool.warp.enable()
    assert told() == (True, "gpupool")
    with warp.ScopedAllocator("cuda:1", warp.CudaDefaultAllocator(1)):
        assert told() == (False, "gpupool on device 0, warp.CudaDefaultAllocator on device 1")


def test_what_cannot_be_enabled_says_why(warp, monkeypatch):
    with monkeypatch.context() as without:
        without.setattr(warp, "get_cuda_devices", list)
        with pytest.raises(gpupool.RuntimeUnavailable, match="Warp finds no CUDA device"):
            gpupool.warp.enable()
    monkeypatch.setattr(gpupool.warp, "runtime", lambda: "host")
    with pytest.raises(gpupool.RuntimeUnavailable, match="unset GPUPOOL_RUNTIME"), gpupool.warp.using():
        pass
    assert not gpupool.warp.is_enabled()
    assert gpupool.warp._blocks == 0


@pytest.mark.parametrize("order", [("gpupool", "warp"), ("warp", "gpupool")])
def test_exits_cleanly_with_live_arrays_and_graphs(order):
    run_program("frameworks/ends.py", "warp", DOUBLES, *order)


def test_the_double_has_what_warp_has(monkeypatch):
    real = pytest.importorskip("warp", reason="needs Warp itself")
    monkeypatch.syspath_prepend(str(DOUBLES))
    monkeypatch.delitem(sys.modules, "warp")
    double = importlib.import_module("warp")
    monkeypatch.setitem(sys.modules, "warp", real)
    devices, allocators = ("get_cuda_devices", "get_cuda_device"), ("get_device_allocator", "set_device_allocator")
    for name in (*devices, *allocators, "set_cuda_allocator"):
        parameters = [list(inspect.signature(getattr(each, name)).parameters) for each in (double, real)]
        assert parameters[0] == parameters[1], name
    for name in ("allocate", "deallocate"):
        protocol = inspect.signature(getattr(real.Allocator, name))
        own = inspect.signature(getattr(_allocator.Allocator, name))
        assert list(own.parameters) == list(protocol.parameters), name
    # Given a device that is none of Warp's, for there is no GPU here.
    device = SimpleNamespace(ordinal=0)
    assert isinstance(_allocator.Allocator(device), real.Allocator)
