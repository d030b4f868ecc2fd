"""RMM over gpupool and gpupool over RMM: the real RMM, whose resources also serve simulated memory."""

import ctypes
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import gpupool
import pytest
from gpupool import _native
from gpupool._report.info import frameworks
from gpupool._rmm import library
from own_memory import MIB, allocate_in, leave
from rmm_module import cache_of, compiled_module
from running import run_program

rmm = pytest.importorskip("rmm")
adapter = gpupool.rmm
streams = pytest.importorskip("rmm.pylibrmm.stream")


@pytest.fixture(scope="session")
def module():
    """Return the module with resources in C++, compiled for this RMM; None where it cannot be."""
    try:
        return compiled_module(rmm)
    except library.NoLibrary:
        return None


@pytest.fixture(params=["native", "callback"], autouse=True)
def way(request, module, monkeypatch):
    """Run each test with resources in C++, and with those that run Python."""
    if request.param == "native" and module is None:
        pytest.skip("needs a C++ compiler, Cython and the headers of CUDA and Python")
    monkeypatch.setattr(adapter, "_module", module if request.param == "native" else False)
    return request.param


pytestmark = pytest.mark.usefixtures("nothing_left")


def rmm_stream(stream):
    return streams.Stream(obj=stream)


def test_a_resource_allocates_and_frees_on_the_streams_it_is_told():
    resource, stream, other = adapter.resource(), gpupool.Stream(), gpupool.Stream()
    before = gpupool.memory_stats()
    address = resource.allocate(4 * MIB, rmm_stream(stream))
    after = gpupool.memory_stats()
    assert (address % 512, after.requested_bytes - before.requested_bytes) == (0, 4 * MIB)
    work = _native.host_submit(other)
    resource.deallocate(address, 4 * MIB, rmm_stream(other))
    # Not again before the stream that it was freed on has passed.
    assert gpupool.memory_stats().waiting_blocks == before.waiting_blocks + 1
    _native.host_complete(other, work)
    gpupool.empty_cache()
    assert gpupool.memory_stats().live_blocks == before.live_blocks


def test_rmms_buffers_and_adaptors_stand_on_it():
    limited = rmm.mr.LimitingResourceAdaptor(adapter.resource(), MIB)
    before = gpupool.memory_stats().live_blocks
    buffer = rmm.DeviceBuffer(size=1000, mr=limited)
    assert limited.get_allocated_bytes() >= 1000
    assert gpupool.memory_stats().live_blocks == before + 1
    # The buffer keeps the resource, not the resource's Python object.
    del limited
    gc.collect()
    del buffer
    assert gpupool.memory_stats().live_blocks == before
    assert rmm.DeviceBuffer(size=0, mr=adapter.resource()).ptr == 0


def test_a_resource_follows_the_threads_scopes():
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        buffer = rmm.DeviceBuffer(size=1000, mr=adapter.resource())
        assert pool.stats().live_blocks == 1
    del buffer
    assert pool.stats().live_blocks == 0


def test_out_of_memory_is_rmms_error_with_gpupools_message():
    leave(MIB)
    with pytest.raises(MemoryError, match=r"tried to allocate 16\.0 MiB"):
        adapter.resource().allocate(16 * MIB)


def test_pinned_memory_is_used_again_after_its_streams(nothing_left):
    resource, stream, other = adapter.pinned_resource(), gpupool.Stream(), gpupool.Stream()
    address = resource.allocate(32 * MIB, rmm_stream(stream))
    ctypes.memset(address, 7, 32 * MIB)
    stats = gpupool.pinned_stats()
    assert (stats.requested_bytes, gpupool.memory_stats().live_blocks) == (32 * MIB, 0)
    works = [_native.host_submit(stream), _native.host_submit(other)]
    resource.deallocate(address, 32 * MIB, rmm_stream(other))
    others = []
    for one, work in zip((stream, other), works, strict=True):
        others.append(gpupool.empty_pinned(32 * MIB))
        assert others[-1].ptr != address
        _native.host_complete(one, work)
    assert gpupool.empty_pinned(32 * MIB).ptr == address
    assert resource.allocate(0, rmm_stream(stream)) == 0


def test_rmms_adaptors_stand_on_pinned_memory():
    gpupool.empty_cache()
    statistics = rmm.mr.StatisticsResourceAdaptor(adapter.pinned_resource())
    buffer = rmm.DeviceBuffer(size=1000, mr=statistics)
    assert gpupool.pinned_stats().requested_bytes == 1000
    del buffer
    gpupool.set_pinned_limit(MIB)
    with pytest.raises(MemoryError, match="out of pinned memory"):
        statistics.allocate(1 << 30)
    gpupool.set_pinned_limit(None)
    # Until then the block may wait for its stream.
    gpupool.empty_cache()
    assert gpupool.pinned_stats().live_blocks == 0


def test_a_deallocation_never_raises(way):
    run_program("frameworks/rmm_deallocation.py", way, XDG_CACHE_HOME=str(cache_of(rmm)))


def test_threads_allocate_at_once():
    resource, together = adapter.resource(), threading.Barrier(8, timeout=60)
    before = gpupool.memory_stats().live_blocks

    def work():
        stream = rmm_stream(gpupool.Stream())
        together.wait()
        held = [resource.allocate(1000 + index, stream) for index in range(200)]
        addresses.extend(held)
        together.wait()
        for index, address in enumerate(held):
            resource.deallocate(address, 1000 + index, stream)

    addresses = []
    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(work) for _ in range(8)]:
            each.result()
    assert len(set(addresses)) == 8 * 200
    assert gpupool.memory_stats().live_blocks == before


def test_requests_run_no_python(way):
    if way == "callback":
        assert isinstance(adapter.resource(), rmm.mr.CallbackMemoryResource)
        return
    for resource, told in ((adapter.resource(), "Memory"), (adapter.pinned_resource(1), "PinnedMemory")):
        assert isinstance(resource, rmm.mr.DeviceMemoryResource)
        assert repr(resource) == f"<gpupool.rmm.{told}Resource device={resource.device}>"
    assert (adapter.resource().device, adapter.resource(1).device, resource.device) == (0, 1, 1)


def test_what_calls_from_outside_python_serves_callbacks_of_python(way):
    if way == "callback":
        pytest.skip("RMM's callbacks hold the GIL")
    asked = []

    def free(device, nbytes):
        asked.append((device, nbytes))
        return False

    leave(MIB)
    # From a call that holds no GIL.
    callback = gpupool.on_oom(free)
    with pytest.raises(MemoryError):
        adapter.resource().allocate(16 * MIB)
    callback.remove()
    assert asked == [(0, 16 * MIB)]


def test_a_captured_stream_gets_memory_that_is_its_graphs(way):
    resource, stream = adapter.resource(), gpupool.Stream()
    pool = gpupool.MemPool()
    _native.host_begin_capture(stream)
    with pool.capture(stream) as memory:
        address = resource.allocate(4 * MIB, rmm_stream(stream))
        resource.deallocate(address, 4 * MIB, rmm_stream(stream))
        again = resource.allocate(4 * MIB, rmm_stream(stream))
        resource.deallocate(again, 4 * MIB, rmm_stream(stream))
    _native.host_end_capture(stream)
    assert again == address
    pool.trim()
    assert pool.stats().reserved_bytes > 0, "the graph's memory is gone"
    memory.reset()


def test_info_tells_resources_of_gpupools(way, disabled):
    rmm.mr.set_per_device_resource(0, rmm.mr.StatisticsResourceAdaptor(adapter.resource()))
    try:
        told = frameworks._ask_rmm(rmm, range(1))
    finally:
        rmm.mr.set_per_device_resource(0, disabled[0])
    name = "gpupool" if way == "native" else "CallbackMemoryResource"
    assert told == (f"StatisticsResourceAdaptor over {name}", way == "native")


@pytest.fixture
def disabled():
    """Return the resources that RMM has, and no adapter afterwards."""
    yield [rmm.mr.get_per_device_resource(device) for device in range(2)]
    adapter.disable()


def current_resources():
    return [rmm.mr.get_per_device_resource(device) for device in range(2)]


def test_rmm_allocates_from_gpupool_once_enabled(disabled):
    adapter.enable()
    own = current_resources()
    adapter.enable()
    assert current_resources() == own
    assert not set(own) & set(disabled)
    assert adapter.is_enabled()
    live = gpupool.memory_stats().live_blocks
    address = own[0].allocate(1000)
    adapter.disable()
    adapter.disable()
    assert current_resources() == disabled
    assert not adapter.is_enabled()
    assert gpupool.memory_stats().live_blocks == live + 1
    own[0].deallocate(address, 1000)
    assert gpupool.memory_stats().live_blocks == live


def test_a_block_is_a_pools_and_enables(disabled):
    pool = gpupool.MemPool()
    with adapter.using(pool) as entered:
        assert entered is pool
        current = current_resources()[0]
        addresses = [current.allocate(1000)]
        with adapter.using(pool.token()), adapter.using() as entered:
            assert entered is None
            addresses.append(current.allocate(1000))
    assert (adapter.is_enabled(), pool.stats().live_blocks) == (True, 2)
    addresses.append(current.allocate(1000))
    assert pool.stats().live_blocks == 2
    for address in addresses:
        current.deallocate(address, 1000)
    assert pool.stats().live_blocks == 0


def test_where_one_device_cannot_be_enabled_none_is(disabled, monkeypatch):
    own = rmm.mr.set_per_device_resource

    def refuse(device, resource):
        if device == 1:
            raise RuntimeError("the second device is lost")
        own(device, resource)

    with monkeypatch.context() as patched:
        patched.setattr(rmm.mr, "set_per_device_resource", refuse)
        with pytest.raises(RuntimeError, match="is lost"):
            adapter.enable()
    assert not adapter.is_enabled()
    assert current_resources() == disabled


def test_a_resource_that_others_set_stays_and_comes_back(disabled):
    theirs = rmm.mr.CudaMemoryResource()
    adapter.enable()
    rmm.mr.set_per_device_resource(0, theirs)
    adapter.disable()
    assert current_resources() == [theirs, disabled[1]]
    adapter.enable()
    rmm.mr.set_per_device_resource(0, disabled[0])
    adapter.enable()
    assert disabled[0] not in current_resources()
    adapter.disable()
    assert current_resources() == disabled


class Memory:
    """What a resource of RMM's allocates, at addresses of RMM's alignment."""

    def __init__(self, first=1 << 45):
        self.next, self.live, self.freed, self.streams = first, {}, [], []

    def allocate(self, nbytes, stream):
        self.streams.append(stream.__cuda_stream__()[1])
        address = self.next
        self.next += 1 << 30
        self.live[address] = nbytes
        return address

    def deallocate(self, address, nbytes, stream):
        assert self.live.pop(address) == nbytes
        self.freed.append(stream.__cuda_stream__()[1])

    def resource(self):
        return rmm.mr.CallbackMemoryResource(self.allocate, self.deallocate)


@pytest.mark.parametrize("shift", [0, 256])
def test_a_pool_allocates_from_a_resource(shift):
    memory, stream = Memory((1 << 45) + shift), gpupool.Stream()
    pool = gpupool.MemPool(allocator=adapter.allocator(memory.resource()))
    buffers = [allocate_in(pool, size, stream) for size in (1000, 3 * MIB)]
    assert set(memory.streams) == {stream.ptr}
    for buffer in buffers:
        # The whole of the block is in memory that RMM gave.
        spans = memory.live.items()
        assert any(start <= buffer.ptr <= start + size - buffer.nbytes for start, size in spans)
    del buffers, buffer
    pool.trim()
    # Streams may be gone by the time that segments go back; 2 is the thread's own.
    assert (memory.live, set(memory.freed[-2:])) == ({}, {2})


def test_a_resource_without_memory_is_the_cause():
    limited = rmm.mr.LimitingResourceAdaptor(Memory().resource(), 8 * MIB)
    pool = gpupool.MemPool(allocator=adapter.allocator(limited))
    held = allocate_in(pool, MIB)
    with pytest.raises(gpupool.OutOfMemory) as raised:
        allocate_in(pool, 16 * MIB)
    assert isinstance(raised.value.__cause__, MemoryError)
    assert "Exceeded memory limit" in str(raised.value.__cause__)
    assert held.pool_id == pool.id


def test_the_pools_device_is_current_in_a_resource(monkeypatch):
    calls = []
    success = object()

    def set_device(device):
        calls.append(device)
        return (success,)

    bindings = SimpleNamespace(cudaSetDevice=set_device, cudaError_t=SimpleNamespace(cudaSuccess=success))
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings.runtime", bindings)
    memory = Memory()
    pool = gpupool.MemPool(allocator=adapter.allocator(memory.resource()), device=1)
    buffer = allocate_in(pool, MIB, gpupool.Stream(1))
    assert calls == [1, 0]
    del buffer
    pool.trim()
    assert (calls, memory.live) == ([1, 0, 1, 0], {})
    success = None
    with pytest.raises(gpupool.OutOfMemory) as raised:
        allocate_in(pool, MIB, gpupool.Stream(1))
    assert "cudaSetDevice failed" in str(raised.value.__cause__)


@pytest.mark.parametrize("order", [("rmm", "gpupool"), ("gpupool", "rmm")])
def test_exits_cleanly_with_live_buffers(order, way):
    run_program("frameworks/ends.py", "rmm", way, *order, XDG_CACHE_HOME=str(cache_of(rmm)))
