"""The adapter for PyTorch, against a stand-in: PyTorch itself needs a GPU, and there tests/gpu/test_torch.py runs.

Here gpupool has no library for PyTorch, and so is its pluggable allocator; test_torch_library.py has those with one.
"""

import contextlib
import ctypes
import gc
import os
import sys
import threading
import warnings

import gpupool
import gpupool.torch
import pytest
from abi import build_torch, build_torch_cuda
from gpupool import _native
from gpupool._frameworks import plug as _plug
from gpupool._torch import library, place, pools
from own_memory import MIB, Allocator, allocate_in, other_thread
from processes import start_python, succeeded
from running import run_program
from torch_double import CachingAllocator, OutOfMemoryError, PluggableAllocator, Torch, Wrapped

pytestmark = pytest.mark.filterwarnings("ignore:gpupool has no library for PyTorch:RuntimeWarning")

# Set where a test runs in a process of its own.
ALONE = "GPUPOOL_TEST_ALONE"
MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


# Of the session, since gpupool stays with the library that it has found.
@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Return where the stand-in is installed."""
    folder = tmp_path_factory.mktemp("site") / "torch"
    build_torch(folder / "lib" / "libc10_cuda.so")
    build_torch_cuda(folder / "lib" / "libtorch_cuda.so")
    return folder


def no_library(torch):
    raise library.NoLibrary("there is no C++ compiler")


@pytest.fixture
def torch(folder, monkeypatch, nothing_left):
    """Return PyTorch as it is when it was just imported."""
    double = Torch(folder)
    monkeypatch.setitem(sys.modules, "torch", double)
    monkeypatch.setattr(gpupool.torch, "_source", None)
    for module, name, value in ((place, "_way", None), (pools, "_idle", {}), (pools, "_inside", 0)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(library, "load", no_library)
    yield double
    gpupool.torch.disable()
    double.library.torch_set_current(None, False)


@pytest.fixture
def allocator(torch):
    """Make gpupool PyTorch's allocator."""
    gpupool.torch.enable()
    return torch.allocator


def live_in(pool_id):
    """Return the addresses of blocks that are held, of the segments of a pool."""
    segments = [segment for segment in gpupool.memory_snapshot()["segments"] if segment["segment_pool_id"] == pool_id]
    blocks = [block for segment in segments for block in segment["blocks"]]
    return {block["address"] for block in blocks if block["state"] == "active_allocated"}


def pool_of(address):
    """Return the id of the pool that a block is in."""
    ids = {segment["segment_pool_id"] for segment in gpupool.memory_snapshot()["segments"]}
    return next(pool_id for pool_id in ids if address in live_in(pool_id))


# Pools of PyTorch's.


def test_a_pool_of_pytorchs_takes_its_memory_from_ours(torch):
    pool = gpupool.MemPool(limit=8 * MIB, device=1)
    made = gpupool.torch.mem_pool(pool, use_on_oom=True, no_split=True)
    assert (made.use_on_oom, made.no_split, torch.calls) == (True, True, [("device", 1)])
    with gpupool.use_mem_pool(gpupool.MemPool(device=1)):
        address = made.take(2 * MIB, 1)
    assert live_in(pool.id) == {address}
    with pytest.raises(OutOfMemoryError):
        made.take(20 * MIB, 1)
    del made
    assert pool.stats().live_bytes == 0


def test_without_a_pool_it_is_the_default_one(torch):
    made = gpupool.torch.mem_pool(device=1)
    assert torch.calls == [("device", 1)]
    address = made.take(2 * MIB, 1)
    assert pool_of(address) == (0, 0)


def test_pytorchs_pool_keeps_ours(torch):
    pool = gpupool.MemPool()
    pool_id, made = pool.id, gpupool.torch.mem_pool(pool)
    del pool
    gc.collect()
    address = made.take(2 * MIB)
    assert live_in(pool_id) == {address}


def test_pools_that_cannot_feed_pytorch_are_refused(torch):
    with pytest.raises(gpupool.InvalidValue, match="inside a lock"):
        gpupool.torch.mem_pool(gpupool.MemPool((lambda *arguments: 0, lambda *arguments: None)))
    own = Allocator()
    functions = MALLOC(own.malloc), FREE(own.free)
    addresses = tuple(ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    made = gpupool.torch.mem_pool(gpupool.MemPool(addresses))
    assert made.take(2 * MIB) in own.live
    del made
    gpupool.empty_cache()
    assert own.live == {}
    with pytest.raises(gpupool.InvalidValue, match="of device 1, not of device 0"):
        gpupool.torch.mem_pool(gpupool.MemPool(device=1), device=0)


@pytest.mark.parametrize("wrap", [lambda inner: inner, Wrapped], ids=["allocator()", "CUDAPluggableAllocator"])
def test_an_allocator_of_pytorchs_supplies_a_pool(torch, folder, wrap):
    library, own = ctypes.CDLL(str(folder / "lib" / "libtorch_cuda.so")), Allocator()
    functions = MALLOC(own.malloc), FREE(own.free)
    allocator = wrap(PluggableAllocator(library, *(ctypes.cast(each, ctypes.c_void_p).value for each in functions)))
    pool, stream = gpupool.MemPool(allocator, device=1), gpupool.Stream(1)
    assert pool.allocator is allocator
    first, second = allocate_in(pool, 4 * MIB, stream), allocate_in(pool, 8 * MIB, stream)
    assert own.calls == [(4 * MIB, 1, stream.ptr), (8 * MIB, 1, stream.ptr)]
    assert set(own.live) == {first.ptr, second.ptr}
    # The pool keeps PyTorch's object as long as memory of it lives.
    del allocator, pool
    gc.collect()
    second.free()
    assert set(own.live) == {first.ptr}
    del first
    assert own.live == {}


def test_an_allocator_of_pytorchs_that_has_no_memory_is_out_of_memory(torch, folder):
    library = ctypes.CDLL(str(folder / "lib" / "libtorch_cuda.so"))
    functions = MALLOC(lambda size, device, stream: None), FREE(lambda *arguments: None)
    allocator = PluggableAllocator(library, *(ctypes.cast(each, ctypes.c_void_p).value for each in functions))
    with pytest.raises(gpupool.OutOfMemory, match="null pointer"):
        allocate_in(gpupool.MemPool(allocator), MIB)


def test_other_allocators_of_pytorchs_are_refused(torch, folder, monkeypatch):
    with pytest.raises(gpupool.InvalidValue, match="not one of PyTorch's pluggable allocators"):
        gpupool.MemPool(Wrapped(CachingAllocator()))
    monkeypatch.setattr(torch, "__file__", str(folder / "elsewhere" / "__init__.py"))
    with pytest.raises(gpupool.LibraryNotFound, match="Give the addresses of the two C functions instead"):
        gpupool.MemPool(CachingAllocator())
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(gpupool.InvalidValue, match="CUDAPluggableAllocator of PyTorch"):
        gpupool.MemPool(CachingAllocator())


def test_a_pool_with_an_allocator_of_pytorchs_feeds_pytorch(torch, folder):
    library, own = ctypes.CDLL(str(folder / "lib" / "libtorch_cuda.so")), Allocator()
    functions = MALLOC(own.malloc), FREE(own.free)
    allocator = PluggableAllocator(library, *(ctypes.cast(each, ctypes.c_void_p).value for each in functions))
    made = gpupool.torch.mem_pool(gpupool.MemPool(allocator))
    assert made.take(2 * MIB) in own.live


def test_a_block_for_all_threads_is_pytorchs_for_all_threads(torch):
    pool = gpupool.MemPool(device=1)
    with pytest.raises(KeyError), gpupool.torch.using(pool, all_threads=True):
        raise KeyError
    (_, begun_device, torch_pool), *rest = [call for call in torch.calls if call[0] in ("begin", "end", "release")]
    assert begun_device == 1
    assert rest == [("end", 1, torch_pool), ("release", 1, torch_pool)]


def test_after_enable_a_block_for_all_threads_routes_theirs(allocator):
    pool = gpupool.MemPool()
    with other_thread() as run, gpupool.torch.using(pool, all_threads=True):
        address = run(allocator.allocate, MIB)
        assert pool_of(address) == pool.id
        run(allocator.free, address, MIB, 0, None)
    assert pool.use_count() == 1


def test_a_block_uses_one_pool_of_pytorchs_again_and_keeps_none_of_ours(torch):
    pool, used = gpupool.MemPool(device=1), []
    for _ in range(3):
        with gpupool.torch.using(pool) as inside:
            assert inside is pool
            used.append(torch.local.pool)
            assert torch.local.pool.inside == (threading.get_ident(), 1)
            torch.local.pool.take(MIB, 1)
    assert used[0] is used[1] is used[2]
    assert pool.stats().live_bytes == 3 * MIB
    del used
    gpupool.torch.empty_cache()
    assert pool.stats().live_bytes == 0
    assert torch.calls[-1] == "empty_cache"
    with gpupool.torch.using(pool):
        token = pool.token()
        inside = None
    del pool
    gc.collect()
    with pytest.raises(gpupool.InvalidValue, match="dropped"):
        gpupool.c_api.feed(token)


def test_blocks_nest_also_in_one_pool_and_end_by_exceptions(torch):
    pool = gpupool.MemPool()
    with gpupool.torch.using(pool):
        outer = torch.local.pool
        with gpupool.torch.using(pool):
            assert torch.local.pool is not outer
        with pytest.raises(ZeroDivisionError), gpupool.torch.using(pool):
            print(1 // 0)
        assert torch.local.pool is outer
    assert torch.local.pool is None
    assert len(pools._idle[pool.id]) == 2


def test_no_pool_of_pytorchs_dies_while_a_block_is_open(torch):
    pool, other = gpupool.MemPool(), gpupool.MemPool()
    with gpupool.torch.using(other):
        torch.local.pool.take(MIB)
    with gpupool.torch.using(pool):
        gpupool.torch.empty_cache()
        assert other.stats().live_bytes == MIB
    gpupool.torch.empty_cache()
    assert other.stats().live_bytes == 0


def test_16_threads_in_one_pool(torch):
    pool = gpupool.MemPool()
    all_in = threading.Barrier(16, timeout=60)
    used = set()

    def work():
        for _ in range(10):
            with gpupool.torch.using(pool):
                torch.local.pool.take(MIB)
                used.add(torch.local.pool)
                all_in.wait()

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.stats().live_bytes == 160 * MIB
    assert len(used) == len(pools._idle[pool.id]) >= 16
    used.clear()
    gpupool.torch.empty_cache()
    assert pool.stats().live_bytes == 0


# PyTorch's allocator for the whole process.


def test_every_allocation_comes_from_gpupool(allocator, torch):
    gpupool.torch.enable()
    assert torch.allocator is allocator, "enabled twice"
    addresses = [allocator.allocate(size) for size in (512, 3 * MIB, 0)]
    assert addresses[2] is None
    assert set(addresses[:2]) <= live_in((0, 0))
    for address, size in zip(addresses, (512, 3 * MIB, 0), strict=True):
        allocator.free(address, size, 0, None)
    assert not set(addresses) & live_in((0, 0))


def test_it_follows_scopes(allocator):
    pool = gpupool.MemPool()
    with gpupool.torch.using(pool):
        inside = allocator.allocate(MIB)
    assert live_in(pool.id) == {inside}
    allocator.free(inside, MIB, 0, None)
    with pytest.raises(gpupool.Error, match="no pools of its own, since gpupool is its pluggable allocator"):
        gpupool.torch.mem_pool(pool)


def test_out_of_memory_is_pytorchs_error_and_says_who_holds_it(allocator):
    pool = gpupool.MemPool(limit=4 * MIB)
    asked = []
    callback = gpupool.on_oom(lambda device, nbytes: asked.append(nbytes))
    with (
        gpupool.use_mem_pool(pool),
        pytest.raises(
            OutOfMemoryError, match=r"^CUDA out of memory\. Tried to allocate 5\.00 GiB\. .* limit is 4\.0 MiB"
        ),
    ):
        allocator.allocate(5 << 30)
    callback.remove()
    assert asked == [5 << 30]
    with gpupool.use_mem_pool(pool), pytest.raises(OutOfMemoryError, match=r"Tried to allocate 4\.50 MiB\."):
        allocator.allocate(9 * MIB // 2)
    # Nothing is held by what was thrown.
    with gpupool.use_mem_pool(pool):
        allocator.free(allocator.allocate(4 * MIB), 4 * MIB, 0, None)


def test_many_threads_may_run_out_of_memory_at_once(allocator):
    raised = []

    def work():
        for _ in range(50):
            try:
                allocator.allocate(1 << 50)
            except OutOfMemoryError as error:
                raised.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(raised) == 800


@pytest.mark.parametrize(
    "call",
    [
        lambda allocator: allocator.allocate(MIB, 7),
        lambda allocator: allocator.memory_fraction(2.0, 0),
        lambda allocator: allocator.record_stream(0x1000, None),
        lambda allocator: allocator.begin(7, 1, 0),
    ],
    ids=["device", "fraction", "address", "device of a pool"],
)
def test_other_failures_are_runtime_errors(allocator, call):
    with pytest.raises(RuntimeError) as raised:
        call(allocator)
    assert type(raised.value) is RuntimeError
    assert str(raised.value)


def test_a_recorded_stream_keeps_the_memory(allocator):
    stream = gpupool.Stream()
    address = allocator.allocate(4 * MIB)
    allocator.record_stream(address, stream.ptr)
    allocator.record_stream(None, stream.ptr)
    work = _native.host_submit(stream)
    allocator.free(address, 4 * MIB, 0, None)
    other = allocator.allocate(4 * MIB)
    assert other != address
    _native.host_complete(stream, work)
    allocator.free(other, 4 * MIB, 0, None)
    gpupool.empty_cache()
    assert gpupool.memory_stats().waiting_blocks == 0


@pytest.mark.parametrize("is_pytorchs", [True, False], ids=["pytorch", "external"])
def test_streams_of_pytorchs_own_share_memory_and_external_ones_may_be_gone(request, allocator, torch, is_pytorchs):
    # gpupool asks the first stand-in that it finds in a process, which another test may have brought.
    if ALONE not in os.environ:
        succeeded(start_python("-m", "pytest", "-q", f"{request.path}::{request.node.name}", **{ALONE: "1"}))
        return
    set_current = torch.library.torch_set_current
    set_current.argtypes = [ctypes.c_void_p, ctypes.c_bool]
    streams = [_native.host_create_stream(0) for _ in range(2)]
    for stream in streams:
        set_current(stream, is_pytorchs)
        allocator.free(allocator.allocate(40 * MIB, 0, stream), 40 * MIB, 0, stream)
        if not is_pytorchs:
            _native.host_destroy_stream(stream)
    reserved = gpupool.memory_stats().reserved_bytes
    assert reserved < 50 * MIB if is_pytorchs else reserved >= 80 * MIB
    gpupool.empty_cache()
    assert gpupool.memory_stats().reserved_bytes == 0


def test_the_stream_of_an_allocation_need_not_be_pytorchs_current_one(allocator, torch):
    current, named = (_native.host_create_stream(0) for _ in range(2))
    torch.library.torch_set_current.argtypes = [ctypes.c_void_p, ctypes.c_bool]
    torch.library.torch_set_current(current, True)
    allocator.free(allocator.allocate(4 * MIB, 0, named), 4 * MIB, 0, named)
    _native.host_destroy_stream(named)
    gpupool.empty_cache()
    assert gpupool.memory_stats().reserved_bytes == 0


def test_the_cache_is_emptied_and_limited(allocator):
    allocator.free(allocator.allocate(40 * MIB), 40 * MIB, 0, None)
    before = gpupool.memory_stats().reserved_bytes
    allocator.reset()
    assert gpupool.memory_stats().reserved_bytes <= before - 40 * MIB
    allocator.memory_fraction(0.25, 0)
    assert gpupool.get_per_process_memory_fraction(0) == 0.25


class Graph:
    """`torch.cuda.CUDAGraph`: tells the allocator of its capture and its end."""

    numbers = iter(range(1, 1000))

    def __init__(self, allocator, pool=None):
        self.allocator, self.stream = allocator, gpupool.Stream()
        self.id = pool or (next(self.numbers), 0)

    def __enter__(self):
        self.allocator.begin(0, *self.id)
        _native.host_begin_capture(self.stream)
        return self

    def __exit__(self, *exception):
        _native.host_end_capture(self.stream)
        self.allocator.end(0, *self.id)

    @property
    def address(self):
        return self.stream.ptr if isinstance(self.stream, gpupool.Stream) else self.stream

    def allocate(self, size):
        return self.allocator.allocate(size, 0, self.address)

    def free(self, address, size):
        self.allocator.free(address, size, 0, self.address)

    def fail(self):
        """Be captured, allocate, and fail: of that PyTorch 2.11 tells no end, and it releases no pool."""
        self.allocator.begin(0, *self.id)
        _native.host_begin_capture(self.stream)
        self.free(self.allocate(MIB), MIB)
        _native.host_end_capture(self.stream)

    def reset(self):
        self.allocator.release(0, *self.id)


@contextlib.contextmanager
def current(torch, stream, is_own):
    """Make a stream PyTorch's current one in a block: one of its own, or an external one."""
    torch.library.torch_set_current(ctypes.c_void_p(stream), is_own)
    try:
        yield
    finally:
        torch.library.torch_set_current(None, False)


def test_a_graphs_memory_is_nobody_elses_until_its_reset(allocator, torch):
    count = gpupool.memory_stats(0).pools
    with Graph(allocator) as graph:
        first = graph.allocate(4 * MIB)
        graph.free(first, 4 * MIB)
        assert graph.allocate(4 * MIB) == first, "a graph uses its own memory again"
        # A backward pass allocates on the same stream from a thread of its own.
        with other_thread() as run:
            second = run(lambda: graph.allocate(4 * MIB))
        eager = allocator.allocate(4 * MIB)
    assert pool_of(first) == pool_of(second) != pool_of(eager) == (0, 0)
    after = allocator.allocate(4 * MIB, 0, graph.stream.ptr)
    assert pool_of(after) == (0, 0)
    for address in (first, second):
        graph.free(address, 4 * MIB)
    others = [allocator.allocate(4 * MIB, 0, graph.stream.ptr) for _ in range(20)]
    allocator.reset()
    assert not {first, second} & set(others)
    assert gpupool.memory_stats(0).pools == count + 1
    graph.reset()
    assert gpupool.memory_stats(0).pools == count
    for address in (eager, after, *others):
        allocator.free(address, 4 * MIB, 0, None)
    assert torch.library.torch_filters_alive() == 0


def test_graphs_share_a_pool_until_the_last_is_reset(allocator):
    count, pool = gpupool.memory_stats(0).pools, (0, 1234)
    graphs, addresses = [], []
    for _ in range(2):
        with Graph(allocator, pool) as graph:
            addresses.append(graph.allocate(MIB))
        graph.free(addresses[-1], MIB)
        graphs.append(graph)
    assert gpupool.memory_stats(0).pools == count + 1
    graphs[0].reset()
    assert gpupool.memory_stats(0).pools == count + 1
    graphs[1].reset()
    assert gpupool.memory_stats(0).pools == count
    # One too many, from a destructor, where nothing can be thrown.
    graphs[1].reset()
    allocator.end(0, *pool)


def test_captures_at_once_keep_each_others_memory(allocator):
    count = gpupool.memory_stats(0).pools
    with Graph(allocator) as first, Graph(allocator) as second:
        address = first.allocate(4 * MIB)
    first.free(address, 4 * MIB)
    second.reset()
    others = [allocator.allocate(4 * MIB) for _ in range(20)]
    assert address not in others
    assert gpupool.memory_stats(0).pools > count
    first.reset()
    assert gpupool.memory_stats(0).pools == count
    for other in others:
        allocator.free(other, 4 * MIB, 0, None)


def test_a_capture_that_failed_holds_nothing_of_later_graphs(allocator):
    count = gpupool.memory_stats(0).pools
    failed = Graph(allocator)
    failed.fail()
    with Graph(allocator) as graph:
        graph.free(graph.allocate(MIB), MIB)
    graph.reset()
    assert gpupool.memory_stats(0).pools == count + 1
    failed.reset()
    assert gpupool.memory_stats(0).pools == count


def test_a_capture_that_failed_before_it_allocated_is_over_once_its_pool_is_released(allocator, torch):
    failed = Graph(allocator)
    failed.stream = _native.host_create_stream(0)
    with current(torch, failed.stream, False):
        allocator.begin(0, *failed.id)
        _native.host_begin_capture(failed.stream)
        with pytest.raises(gpupool.InvalidValue, match="is being captured"):
            gpupool.synchronize()
        # PyTorch 2.11 tells of no end.
        _native.host_end_capture(failed.stream)
    failed.reset()
    gpupool.synchronize()


def test_a_capture_of_pytorchs_own_stream_that_failed_is_over(allocator, torch):
    failed = Graph(allocator)
    failed.stream = _native.host_create_stream(0)
    with current(torch, failed.stream, True):
        failed.fail()
    gpupool.synchronize()
    failed.reset()


def test_a_capture_that_failed_is_over_once_its_thread_has_captured_into_its_pool_again(allocator, torch):
    stream, pool = _native.host_create_stream(0), (0, 4321)
    with current(torch, stream, False):
        # This one did not begin.
        allocator.begin(0, *pool)
        graph = Graph(allocator, pool)
        graph.stream = stream
        with graph:
            graph.free(graph.allocate(MIB), MIB)
    gpupool.synchronize()
    graph.reset()
    graph.reset()


def test_the_stream_of_a_capture_that_failed_may_be_gone(allocator, torch):
    failed = Graph(allocator)
    failed.stream = _native.host_create_stream(0)
    with current(torch, failed.stream, False):
        failed.fail()
    _native.host_destroy_stream(failed.stream)
    # No driver can be asked about it.
    with Graph(allocator) as graph:
        graph.free(graph.allocate(MIB), MIB)
    gpupool.empty_cache()
    graph.reset()
    failed.reset()
    gpupool.synchronize()


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "external"])
def test_no_call_for_the_whole_device_begins_before_an_announced_capture(allocator, torch, is_own):
    graph = Graph(allocator)
    graph.stream = _native.host_create_stream(0)
    with current(torch, graph.stream, is_own), other_thread() as run:
        allocator.begin(0, *graph.id)
        # Such a call of another thread would still be under way when this one's capture begins.
        with pytest.raises(gpupool.InvalidValue, match="is being captured"):
            run(gpupool.synchronize)
        _native.host_begin_capture(graph.stream)
        graph.free(graph.allocate(MIB), MIB)
        _native.host_end_capture(graph.stream)
        allocator.end(0, *graph.id)
        run(gpupool.synchronize)
    graph.reset()


def test_an_announced_capture_that_did_not_begin_is_over_once_its_thread_allocates(allocator, torch):
    failed = Graph(allocator)
    failed.stream = _native.host_create_stream(0)
    with current(torch, failed.stream, True), other_thread() as run:
        allocator.begin(0, *failed.id)
        # Another thread's request says nothing of it.
        run(lambda: allocator.free(allocator.allocate(MIB), MIB, 0, None))
        with pytest.raises(gpupool.InvalidValue, match="is being captured"):
            run(gpupool.synchronize)
        # Its own comes after the call that failed to begin it, of which PyTorch does not tell.
        allocator.free(allocator.allocate(MIB), MIB, 0, None)
        run(gpupool.synchronize)
    failed.reset()


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "external"])
def test_a_capture_is_known_before_it_allocates(allocator, torch, is_own):
    with Graph(allocator) as older:
        address = older.allocate(4 * MIB)
    graph = Graph(allocator)
    graph.stream = _native.host_create_stream(0)
    # It begins with work in place, while another thread ends the other graph.
    with current(torch, graph.stream, is_own), graph, other_thread() as run:
        run(lambda: older.free(address, 4 * MIB))
        run(older.reset)
        run(allocator.reset)
    graph.reset()


def test_a_request_on_the_default_stream_is_no_graphs(allocator):
    graph = Graph(allocator)
    # PyTorch itself captures no blocking stream; one of an extension may be.
    graph.stream = _native.host_create_stream(0, blocking=True)
    with graph:
        inside, outside = graph.allocate(MIB), allocator.allocate(MIB, 0, None)
        allocator.reset()
    assert pool_of(outside) == (0, 0) != pool_of(inside)
    graph.free(inside, MIB)
    allocator.free(outside, MIB, 0, None)
    graph.reset()


def test_a_captures_scope_of_gpupool_stays_its_own(allocator):
    pool = gpupool.MemPool()
    with Graph(allocator) as graph, pool.capture(graph.stream) as memory:
        tensor, buffer = graph.allocate(MIB), gpupool.empty(MIB, graph.stream)
    assert live_in(pool.id) == {buffer.ptr}
    assert pool_of(tensor) not in (pool.id, (0, 0))
    graph.free(tensor, MIB)
    graph.reset()
    memory.reset()


def test_a_graphs_memory_waits_for_replays_when_it_ends(allocator):
    other = gpupool.Stream()
    with Graph(allocator) as graph:
        address = graph.allocate(4 * MIB)
    ctypes.memset(address, 5, 4 * MIB)
    work = _native.host_submit(other)
    reserved = gpupool.memory_stats(0).reserved_bytes
    graph.free(address, 4 * MIB)
    graph.reset()
    gpupool.empty_cache()
    assert ctypes.string_at(address, 4) == b"\5" * 4, "the graph may be at work on it"
    assert gpupool.memory_stats(0).reserved_bytes <= reserved
    _native.host_complete(other, work)
    gpupool.empty_cache()


# Enabling.


def test_calls_without_a_stream_follow_pytorchs(torch):
    stream = gpupool.Stream(1)
    torch.streams = {1: stream.ptr}
    gpupool.torch.enable(allocator=False)
    gpupool.torch.enable(allocator=False)
    assert torch.allocator is None
    assert _native.host_stream_of(gpupool.host.handle(device=1)) == stream.ptr
    assert _native.host_stream_of(gpupool.host.handle()) == 0
    gpupool.torch.disable()
    gpupool.torch.disable()
    assert _native.host_stream_of(gpupool.host.handle(device=1)) == 0
    assert _plug._sources == []


def test_both_at_once_and_streams_alone_before(torch):
    stream = gpupool.Stream()
    torch.streams = {0: stream.ptr}
    gpupool.torch.enable(allocator=False)
    gpupool.torch.enable()
    assert torch.allocator is not None
    assert gpupool.empty(64).stream == stream.ptr
    gpupool.torch.disable()
    assert gpupool.empty(64).stream == 0
    address = torch.allocator.allocate(MIB)
    assert address in live_in((0, 0))
    torch.allocator.free(address, MIB, 0, None)


def test_without_a_library_it_is_too_late_once_pytorch_has_used_cuda(torch):
    torch.is_used = True
    for _ in range(2):
        with pytest.raises(
            gpupool.Error,
            match=r"before the first tensor .* gpupool\.torch\.using.* own library, but .* no C\+\+ compiler",
        ):
            gpupool.torch.enable()
    assert _plug._sources == []
    # The rest works on.
    assert gpupool.torch.mem_pool().take(MIB)


def test_without_a_library_one_warning_says_what_is_missing(torch):
    with pytest.warns(RuntimeWarning) as told:
        gpupool.torch.enable()
    gpupool.torch.enable()
    (warning,) = told
    assert warning.filename == __file__
    said = "has no library for PyTorch 2.11.0+cu130 and could not make one: there is no C++ compiler. "
    assert said in str(warning.message)
    assert "no memory statistics" in str(warning.message)


def test_a_warning_that_is_an_error_leaves_it_enabled(torch, recwarn):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            gpupool.torch.enable()
    gpupool.torch.enable()
    address = torch.allocator.allocate(MIB)
    assert address in live_in((0, 0))
    torch.allocator.free(address, MIB, 0, None)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("backend", "said"),
    [("cudaMallocAsync", "take `backend:cudaMallocAsync` out"), ("pluggable", "change_current_allocator")],
)
def test_an_allocator_that_was_chosen_stays(torch, backend, said):
    torch.backend = backend
    with pytest.raises(gpupool.Error, match=said):
        gpupool.torch.enable()
    assert torch.allocator is None
    gpupool.torch.enable(allocator=False)


def test_threads_enable_it_once(torch):
    changes, change = [], torch._C._cuda_changeCurrentAllocator
    torch._C._cuda_changeCurrentAllocator = lambda allocator: (changes.append(allocator), change(allocator))
    together = threading.Barrier(8, timeout=60)

    def work():
        together.wait()
        gpupool.torch.enable()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(changes) == len(_plug._sources) == 1


@pytest.mark.parametrize(("version", "message"), [("2.10.1", "2.11 is needed"), ("", "unknown version")])
def test_an_old_pytorch_is_refused(torch, version, message):
    torch.__version__ = version
    for call in (gpupool.torch.enable, gpupool.torch.mem_pool):
        with pytest.raises(gpupool.LibraryNotFound, match=message):
            call()


def test_a_pytorch_without_cuda_or_without_its_classes_is_refused(torch, tmp_path):
    torch.__file__ = str(tmp_path / "torch" / "__init__.py")
    with pytest.raises(gpupool.LibraryNotFound, match="built without CUDA"):
        gpupool.torch.enable()
    del torch._C._cuda_customAllocator
    for call in (gpupool.torch.mem_pool, lambda: gpupool.torch.enable(allocator=False)):
        with pytest.raises(gpupool.LibraryNotFound, match="built without CUDA"):
            call()
    torch._C._cuda_customAllocator = None
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "lib" / "libc10_cuda.so").symlink_to(_native.__file__)
    with pytest.raises(
        gpupool.LibraryNotFound, match=r"has no __cxa_allocate_exception.* use gpupool\.torch\.mem_pool"
    ):
        gpupool.torch.enable()
    assert torch.allocator is None


def test_without_pytorch_the_error_says_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(gpupool.LibraryNotFound, match=r"pip install 'torch>=2\.11'"):
        gpupool.torch.mem_pool()


def test_nothing_of_gpupool_imports_pytorch():
    run_program("importing/leaves_alone.py", "pytorch")


def test_feeding_leaves_other_memory_alone(torch):
    pool = gpupool.MemPool()
    buffer = allocate_in(pool, MIB)
    made = gpupool.torch.mem_pool(pool)
    made.take(2 * MIB)
    assert pool.stats().live_bytes == 3 * MIB
    del made
    assert live_in(pool.id) == {buffer.ptr}
