"""The adapter for PyTorch, against a stand-in: PyTorch itself needs a GPU, and there tests/gpu/test_torch.py runs.

Here gpupool has no library for PyTorch, and so cannot be its allocator; test_torch_library.py has those with one.
"""

import ctypes
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import gpupool
import gpupool.torch
import guide
import pytest
from abi import build_torch_cuda
from gpupool import _native
from gpupool._frameworks import plug as _plug
from gpupool._torch import compiler, library, place, pools
from own_memory import MIB, Allocator, allocate_in, other_thread
from torch_double import CachingAllocator, OutOfMemoryError, PluggableAllocator, Torch, Wrapped

MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


# Of the session, since gpupool stays with the library that it has found.
@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Return where the stand-in is installed."""
    folder = tmp_path_factory.mktemp("site") / "torch"
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
    for module, name, value in ((place, "_is_taken", False), (pools, "_idle", {}), (pools, "_inside", 0)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(library, "load", no_library)
    yield double
    gpupool.torch.disable()


def addresses_of(malloc, free):
    """Return C functions of these two, which must be kept, and their addresses."""
    functions = MALLOC(malloc), FREE(free)
    return functions, tuple(ctypes.cast(function, ctypes.c_void_p).value for function in functions)


def pluggable(folder, malloc, free):
    """Return C functions, which must be kept, and an allocator of PyTorch's with them."""
    functions, addresses = addresses_of(malloc, free)
    return functions, PluggableAllocator(ctypes.CDLL(str(folder / "lib" / "libtorch_cuda.so")), *addresses)


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
    _kept, addresses = addresses_of(own.malloc, own.free)
    made = gpupool.torch.mem_pool(gpupool.MemPool(addresses))
    assert made.take(2 * MIB) in own.live
    del made
    gpupool.empty_cache()
    assert own.live == {}
    with pytest.raises(gpupool.InvalidValue, match="of device 1, not of device 0"):
        gpupool.torch.mem_pool(gpupool.MemPool(device=1), device=0)


@pytest.mark.parametrize("wrap", [lambda inner: inner, Wrapped], ids=["allocator()", "CUDAPluggableAllocator"])
def test_an_allocator_of_pytorchs_supplies_a_pool(torch, folder, wrap):
    own = Allocator()
    _kept, allocator = pluggable(folder, own.malloc, own.free)
    allocator = wrap(allocator)
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
    _kept, allocator = pluggable(folder, lambda *arguments: None, lambda *arguments: None)
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
    own = Allocator()
    _kept, allocator = pluggable(folder, own.malloc, own.free)
    made = gpupool.torch.mem_pool(gpupool.MemPool(allocator))
    assert made.take(2 * MIB) in own.live


def test_a_block_for_all_threads_is_pytorchs_for_all_threads(torch):
    pool = gpupool.MemPool(device=1)
    with pytest.raises(KeyError), gpupool.torch.using(pool, all_threads=True):
        raise KeyError
    (_, begun_device, torch_pool), *rest = [call for call in torch.calls if call[0] in ("begin", "end", "release")]
    assert begun_device == 1
    assert rest == [("end", 1, torch_pool), ("release", 1, torch_pool)]


def test_after_enable_a_block_for_all_threads_routes_theirs(torch, monkeypatch):
    monkeypatch.setattr(place, "_is_taken", True)
    pool = gpupool.MemPool()
    with other_thread() as run, gpupool.torch.using(pool, all_threads=True):
        buffer = run(gpupool.empty, MIB)
        assert pool_of(buffer.ptr) == pool.id
    monkeypatch.setattr(place, "_is_taken", False)
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


def test_a_block_of_no_pool_has_the_default_memory(torch):
    with gpupool.torch.using() as inside:
        assert inside is None
        address = torch.local.pool.take(MIB)
        assert pool_of(address) == (0, 0)
    assert torch.local.pool is None
    gpupool.torch.empty_cache()


def test_a_block_that_cannot_be_is_refused_before_it_begins(torch):
    pool = gpupool.MemPool()
    for given, arguments, said in (
        (pool.token(), {}, "pool is a token, which needs gpupool.torch.enable()"),
        (None, {"all_threads": True}, "all_threads=True needs a pool"),
        ("pool", {}, "pool is 'pool': give a MemPool, its token(), or None"),
    ):
        with pytest.raises(gpupool.InvalidValue) as caught, gpupool.torch.using(given, **arguments):
            pass
        assert str(caught.value).startswith(said)
    assert pool.use_count() == 1


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
    assert len(pools._idle[pool.device, pool.id]) == 2


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

    with ThreadPoolExecutor(16) as threads:
        for each in [threads.submit(work) for _ in range(16)]:
            each.result()
    assert pool.stats().live_bytes == 160 * MIB
    assert len(used) == len(pools._idle[pool.device, pool.id]) >= 16
    used.clear()
    gpupool.torch.empty_cache()
    assert pool.stats().live_bytes == 0


def test_threads_make_pools_of_pytorchs_at_once(torch, monkeypatch):
    """PyTorch calls the driver for it, which may wait for what another thread does."""
    both, make, pool = threading.Barrier(2, timeout=60), torch.cuda.MemPool, gpupool.MemPool()

    def make_with_the_other(*arguments, **named):
        both.wait()
        return make(*arguments, **named)

    monkeypatch.setattr(torch.cuda, "MemPool", make_with_the_other)

    def work():
        with gpupool.torch.using(pool):
            return torch.local.pool

    with ThreadPoolExecutor(2) as threads:
        made = [each.result() for each in [threads.submit(work) for _ in range(2)]]
    assert made[0] is not made[1]
    assert pools.blocks() == 0


# Enabling.


def test_calls_without_a_stream_follow_pytorchs(torch):
    stream = gpupool.Stream(1)
    torch.streams = {1: stream.ptr}
    gpupool.torch.enable(allocator=False)
    gpupool.torch.enable(allocator=False)
    assert not place.is_taken()
    assert _native.host_stream_of(gpupool.simulated.handle(device=1)) == stream.ptr
    assert _native.host_stream_of(gpupool.simulated.handle()) == 0
    gpupool.torch.disable()
    gpupool.torch.disable()
    assert _native.host_stream_of(gpupool.simulated.handle(device=1)) == 0
    assert _plug._sources == []


def test_the_guide_quotes_the_error_of_a_machine_without_a_compiler(torch, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    with pytest.raises(compiler.CompilationFailed) as missing:
        compiler.find_compiler()

    def load(torch):
        raise library.NoLibrary(str(missing.value))

    monkeypatch.setattr(library, "load", load)
    monkeypatch.setattr(torch, "__version__", "2.16.0")
    with pytest.raises(gpupool.LibraryNotFound) as raised:
        gpupool.torch.enable()
    page = " ".join((guide.ROOT / "docs/pytorch.md").read_text().split())
    assert f"``` gpupool.LibraryNotFound: {raised.value} ```" in page


@pytest.mark.parametrize("arguments", [{}, {"pinned": True}])
def test_without_a_library_the_error_says_what_is_missing_and_nothing_changes(torch, arguments):
    said = r"no library for PyTorch 2\.11\.0\+cu130 and could not make one: there is no C\+\+ compiler\. Mend that, or "
    for _ in range(2):
        with pytest.raises(gpupool.LibraryNotFound, match=said):
            gpupool.torch.enable(**arguments)
    assert not place.is_taken()
    assert _plug._sources == []
    # The rest works on.
    gpupool.torch.enable(allocator=False)
    assert gpupool.torch.mem_pool().take(MIB)


@pytest.mark.parametrize(
    ("backend", "said"),
    [("cudaMallocAsync", "take `backend:cudaMallocAsync` out"), ("pluggable", "change_current_allocator")],
)
def test_an_allocator_that_was_chosen_stays(torch, backend, said):
    torch.backend = backend
    with pytest.raises(gpupool.Error, match=said):
        gpupool.torch.enable()
    gpupool.torch.enable(allocator=False)
    assert not place.is_taken()


@pytest.mark.parametrize(("version", "message"), [("2.10.1", "2.11 is needed"), ("", "unknown version")])
def test_an_old_pytorch_is_refused(torch, version, message):
    torch.__version__ = version
    for call in (gpupool.torch.enable, gpupool.torch.mem_pool):
        with pytest.raises(gpupool.LibraryNotFound, match=message):
            call()


def test_a_pytorch_without_cuda_is_refused(torch):
    del torch._C._cuda_customAllocator
    for call in (gpupool.torch.mem_pool, gpupool.torch.enable, lambda: gpupool.torch.enable(allocator=False)):
        with pytest.raises(gpupool.LibraryNotFound, match="built without CUDA"):
            call()


def test_without_pytorch_the_error_says_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(gpupool.LibraryNotFound, match=r"pip install 'torch>=2\.11'"):
        gpupool.torch.mem_pool()


def test_feeding_leaves_other_memory_alone(torch):
    pool = gpupool.MemPool()
    buffer = allocate_in(pool, MIB)
    made = gpupool.torch.mem_pool(pool)
    made.take(2 * MIB)
    assert pool.stats().live_bytes == 3 * MIB
    del made
    assert live_in(pool.id) == {buffer.ptr}
