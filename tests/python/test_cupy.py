"""CuPy over gpupool, with the real CuPy on simulated devices: its arrays are made and die, but no kernel runs.

CuPy cannot ask a driver here for its current stream, so that a stand-in names it, in place of the C function by which
CuPy's modules ask; what CuPy's own pool would do when memory has run out, and how much memory a device has, are stood
in for where they are needed. With streams of CuPy's own is programs/frameworks/cupy_streams.py.
"""

import ctypes
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import forks
import gpupool
import numpy
import pytest
from gpupool import _native
from gpupool._frameworks import cupy_handles as _cupy_handles
from gpupool._frameworks import cupy_pinned as _cupy_pinned
from own_memory import MIB, capturing, leave
from running import functions_of, run_program

cupy = pytest.importorskip("cupy")
cupyx = pytest.importorskip("cupyx")
adapter = gpupool.cupy
GIB = 1 << 30


class Streams(threading.local):
    """The current stream of each thread."""

    ptr = 0

    def is_capturing(self):
        return False


class OwnPool:
    """CuPy's own pool, with something cached."""

    def __init__(self):
        self.cached, self.emptied = 1000, 0

    def free_bytes(self):
        return self.cached

    def free_all_blocks(self):
        self.cached, self.emptied = 0, self.emptied + 1


def forget():
    adapter._allocator.cache_clear()
    adapter._allocate.cache_clear()
    adapter._current_stream.cache_clear()


def exported(function):
    """Return a C function in a capsule, as Cython has it for other modules."""
    own = cupy.cuda.stream.__pyx_capi__["get_current_stream"]
    name_of, make = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_New
    name_of.restype, name_of.argtypes = ctypes.c_void_p, [ctypes.py_object]
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
    return make(ctypes.cast(function, ctypes.c_void_p), name_of(own), None)


@pytest.fixture
def current(monkeypatch):
    """Stand in for CuPy's current stream; set its ``ptr``."""
    streams = Streams()
    function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_int, ctypes.c_void_p)(lambda _, options: streams)
    monkeypatch.setitem(cupy.cuda.stream.__pyx_capi__, "get_current_stream", exported(function))
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda device=-1: streams)
    forget()
    yield streams
    adapter.disable()
    assert cupy.cuda.get_allocator() == cupy.get_default_memory_pool().malloc
    forget()


@pytest.fixture(autouse=True)
def own_pool(current, nothing_left, monkeypatch):
    own = OwnPool()
    with monkeypatch.context() as context:
        own.malloc = cupy.get_default_memory_pool().malloc
        context.setattr(cupy, "get_default_memory_pool", lambda: own)
        yield own
        gc.collect()


def total_bytes():
    with pytest.raises(gpupool.OutOfMemory) as raised:
        gpupool.empty(1 << 62)
    return raised.value.total_bytes


@pytest.fixture
def properties(monkeypatch):
    total = total_bytes()
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceProperties", lambda device: {"totalGlobalMem": total})
    return total


def memory_of(array):
    return array.data.mem


def as_numpy(array):
    """Return the bytes of an array, which are this process's here."""
    memory = (ctypes.c_char * array.nbytes).from_address(array.data.ptr)
    return numpy.frombuffer(memory, array.dtype).reshape(array.shape)


def test_arrays_are_gpupools_and_go_back_when_the_last_view_dies(current):
    adapter.enable()
    before = gpupool.memory_stats()
    array = cupy.empty((3, 70_000), dtype="f8")
    after = gpupool.memory_stats()
    assert after.live_blocks == before.live_blocks + 1
    assert after.requested_bytes == before.requested_bytes + array.nbytes
    assert (memory_of(array).size, array.data.device_id, array.data.ptr) == (array.nbytes, 0, memory_of(array).ptr)
    as_numpy(array)[:] = numpy.arange(array.size).reshape(array.shape)
    view = array[1:].reshape(2, -1)
    assert (as_numpy(view)[0] == numpy.arange(70_000, 140_000)).all()
    del array
    assert gpupool.memory_stats().live_blocks == before.live_blocks + 1
    del view
    assert gpupool.memory_stats().live_blocks == before.live_blocks


def test_arrays_of_no_bytes_take_no_memory():
    adapter.enable()
    before = gpupool.memory_stats().allocations
    array = cupy.empty((0, 5))
    assert (array.data.ptr, array.data.device_id, array.size) == (0, 0, 0)
    assert gpupool.memory_stats().allocations == before


def test_memory_belongs_to_the_stream_that_is_current(current):
    adapter.enable()
    streams = [gpupool.Stream() for _ in range(2)]
    addresses, works = [], []
    for stream in streams:
        current.ptr = stream.ptr
        array = cupy.empty(1000)
        assert memory_of(array).stream == stream.ptr
        addresses.append(array.data.ptr)
        works.append(_native.host_submit(stream))
        del array
    # What is freed serves its own stream at once, whatever that has still to do, and not the other.
    for stream, address in zip(streams, addresses, strict=True):
        current.ptr = stream.ptr
        assert cupy.empty(1000).data.ptr == address
    for stream, work in zip(streams, works, strict=True):
        _native.host_complete(stream, work)


def test_the_stream_is_cupys_also_where_gpupool_has_another(current):
    stream, other = gpupool.Stream(), gpupool.Stream()
    current.ptr = stream.ptr
    with adapter.using(), gpupool.stream(other):
        assert memory_of(cupy.empty(10)).stream == stream.ptr
        assert gpupool.empty(10).stream == other.ptr


def test_calls_without_a_stream_follow_cupys(current):
    stream = gpupool.Stream()
    current.ptr = stream.ptr
    assert gpupool.empty(10).stream == 0
    adapter.enable()
    assert gpupool.empty(10).stream == stream.ptr
    assert _native.host_stream_of(gpupool.simulated.handle()) == stream.ptr
    adapter.disable()
    assert gpupool.empty(10).stream == 0


def test_to_enable_and_disable_again_does_nothing():
    former = cupy.cuda.get_allocator()
    adapter.enable()
    own = cupy.cuda.get_allocator()
    adapter.enable()
    assert cupy.cuda.get_allocator() is own
    array = cupy.empty(100)
    adapter.disable()
    adapter.disable()
    assert cupy.cuda.get_allocator() == former
    # An array outlives that, and its memory goes where it came from.
    live = gpupool.memory_stats().live_blocks
    as_numpy(array)[:] = 1
    del array
    assert gpupool.memory_stats().live_blocks == live - 1


def test_what_others_set_stays_and_comes_back():
    former = cupy.cuda.get_allocator()

    def theirs(nbytes):
        raise AssertionError

    adapter.enable()
    cupy.cuda.set_allocator(theirs)
    adapter.disable()
    assert cupy.cuda.get_allocator() is theirs
    adapter.enable()
    cupy.cuda.set_allocator(former)
    adapter.enable()
    assert cupy.cuda.get_allocator() not in (former, theirs)
    adapter.disable()
    assert cupy.cuda.get_allocator() == former


def test_arrays_made_before_keep_their_memory():
    freed = []

    class Owner:
        def __del__(self):
            freed.append(True)

    def theirs(nbytes):
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0x1000, nbytes, Owner(), 0), 0)

    with cupy.cuda.using_allocator(theirs):
        array = cupy.empty(10)
    adapter.enable()
    frees = gpupool.memory_stats().frees
    del array
    assert (freed, gpupool.memory_stats().frees) == ([True], frees)


def test_inside_of_a_block_cupy_refuses_and_nothing_changes():
    with adapter.using():
        with pytest.raises(ValueError, match="global allocator"):
            adapter.enable()
        assert gpupool.empty(10).stream == 0
    adapter.enable()
    own = cupy.cuda.get_allocator()
    for block in (adapter.using(), cupy.cuda.using_allocator(lambda nbytes: None)):
        with block, pytest.raises(ValueError, match="global allocator"):
            adapter.disable()
        assert cupy.cuda.get_allocator() is own


def test_a_block_is_its_threads_alone():
    pool, former = gpupool.MemPool(), cupy.cuda.get_allocator()
    with adapter.using(pool):
        assert memory_of(cupy.empty(10)).pool_id == pool.id
        assert in_thread(cupy.cuda.get_allocator) == former
        other = gpupool.MemPool()
        with adapter.using(other) as entered:
            assert entered is other
            assert memory_of(cupy.empty(10)).pool_id != pool.id
        with adapter.using() as entered:
            assert entered is None
            assert memory_of(cupy.empty(10)).pool_id == pool.id
        assert memory_of(cupy.empty(10)).pool_id == pool.id
    assert cupy.cuda.get_allocator() == former
    with adapter.using():
        assert memory_of(cupy.empty(10)).pool_id == (0, 0)
    with pytest.raises(RuntimeError), adapter.using(pool):
        raise RuntimeError
    assert (cupy.cuda.get_allocator(), pool.use_count()) == (former, 1)
    with pytest.raises(gpupool.InvalidValue), adapter.using("pool"):
        pass
    assert cupy.cuda.get_allocator() == former


@pytest.mark.parametrize("threads", [1, 16])
def test_threads_have_streams_and_pools_of_their_own(current, threads):
    adapter.enable()
    together = threading.Barrier(threads, timeout=60)

    def work(number):
        pool, stream = gpupool.MemPool(), gpupool.Stream()
        current.ptr = stream.ptr
        together.wait()
        kept = []
        for turn in range(200):
            with adapter.using(pool):
                array = cupy.empty(1000 + turn, dtype="i8")
            as_numpy(array)[:] = number * 1000 + turn
            assert (memory_of(array).pool_id, memory_of(array).stream) == (pool.id, stream.ptr)
            kept.append(array)
            if turn % 3:
                del kept[turn % len(kept)]
        shared = cupy.empty(100)
        assert memory_of(shared).pool_id == (0, 0)
        values = {int(as_numpy(array)[0]) for array in kept}
        assert len(values) == len(kept)
        assert all(value // 1000 == number for value in values)
        assert all((as_numpy(array) == as_numpy(array)[0]).all() for array in kept)
        del kept, array
        pool.trim()
        return pool.stats().live_blocks

    with ThreadPoolExecutor(threads) as executor:
        assert list(executor.map(work, range(threads))) == [0] * threads


def test_memory_of_a_capture_is_the_graphs(current):
    adapter.enable()
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    current.ptr = stream.ptr
    with capturing(pool, stream) as memory:
        captured = cupy.empty(4 * MIB, dtype="u1")
        temporary = cupy.empty(4 * MIB, dtype="u1")
        addresses = {captured.data.ptr, temporary.data.ptr}
        assert memory_of(captured).pool_id == pool.id
        del temporary
    del captured
    with adapter.using(pool):
        others = [cupy.empty(4 * MIB, dtype="u1") for _ in range(3)]
    assert not addresses & {array.data.ptr for array in others}
    del others
    pool.trim()
    assert pool.stats().reserved_bytes == 8 * MIB
    memory.reset()
    pool.trim()
    assert pool.stats().reserved_bytes == 0


def test_out_of_memory_is_cupys_error(own_pool):
    adapter.enable()
    limit = gpupool.memory_stats().reserved_bytes + 16 * MIB
    leave(16 * MIB)
    held = cupy.empty(8 * MIB, dtype="u1")
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match=r"Out of memory allocating 33,554,432 bytes") as raised:
        cupy.empty(32 * MIB, dtype="u1")
    error = raised.value
    assert (error._size, error._total) == (32 * MIB, gpupool.memory_stats().reserved_bytes)
    assert error._limit == pytest.approx(limit, abs=1)
    assert isinstance(error.__cause__, gpupool.OutOfMemory)
    assert error.__cause__.requested_bytes == 32 * MIB
    assert own_pool.emptied == 1
    # The next requests are served.
    assert cupy.empty(10).size + held.size == 8 * MIB + 10


def test_a_pool_that_sleeps_is_cupys_error_with_gpupools_text():
    pool = gpupool.MemPool()
    with adapter.using(pool):
        array = cupy.empty(MIB, dtype="u1")
        pool.sleep()
        with pytest.raises(
            cupy.cuda.memory.OutOfMemoryError, match=r"is asleep and serves no request: wake it"
        ) as raised:
            cupy.empty(10, dtype="u1")
        assert isinstance(raised.value.__cause__, gpupool.Asleep)
        pool.wake()
        assert cupy.empty(10, dtype="u1").size + array.size == MIB + 10


def test_without_a_limit_the_error_names_none():
    adapter.enable()
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="allocated so far") as raised:
        cupy.cuda.alloc(1 << 62)
    assert raised.value._limit == 0


def test_a_pools_own_limit_is_the_cause():
    with adapter.using(gpupool.MemPool(limit=4 * MIB)):
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError) as raised:
            cupy.empty(8 * MIB, dtype="u1")
        assert "whose limit is 4.0 MiB" in str(raised.value.__cause__)


def test_garbage_is_collected_before_a_request_fails():
    adapter.enable()
    leave(16 * MIB)
    cycle = [cupy.empty(12 * MIB, dtype="u1")]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        assert cupy.empty(12 * MIB, dtype="u1").size == 12 * MIB
    finally:
        gc.enable()


@pytest.mark.parametrize("unknown", [False, True])
def test_cupys_own_pool_is_left_alone_in_a_capture(current, own_pool, monkeypatch, unknown):
    def is_capturing():
        if unknown:
            raise RuntimeError
        return True

    monkeypatch.setattr(current, "is_capturing", is_capturing, raising=False)
    adapter.enable()
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.cuda.alloc(1 << 62)
    assert own_pool.emptied == 0


def test_the_pools_methods_are_cupys():
    methods = {name for name in vars(cupy.cuda.MemoryPool) if not name.startswith("_")} - {"free_all_free"}
    assert methods == {name for name in vars(adapter.MemoryPool) if not name.startswith("_")}


def test_the_pool_tells_what_is_held_and_gives_it_back():
    adapter.enable()
    pool = adapter.get_default_memory_pool()
    assert pool is adapter.get_default_memory_pool()
    used = pool.used_bytes()
    arrays = [cupy.empty(8 * MIB, dtype="u1") for _ in range(3)]
    pointer = pool.malloc(4 * MIB)
    assert pool.used_bytes() == used + 28 * MIB
    assert pool.total_bytes() == pool.used_bytes() + pool.free_bytes()
    free = pool.n_free_blocks()
    del arrays[1]
    assert pool.n_free_blocks() == free + 1
    assert (pool.used_bytes(), pool.free_bytes() >= 8 * MIB) == (used + 20 * MIB, True)
    del arrays, pointer
    pool.free_all_blocks()
    assert (pool.used_bytes(), pool.free_bytes()) == (used, 0)
    pool.free_all_blocks(stream=cupy.cuda.Stream.null)


def test_limits(properties):
    pool = adapter.get_default_memory_pool()
    assert pool.get_limit() == 0
    pool.set_limit(size=properties // 4)
    assert pool.get_limit() == pytest.approx(properties // 4, abs=1)
    assert gpupool.get_per_process_memory_fraction(0) == pytest.approx(0.25)
    assert gpupool.get_per_process_memory_fraction(1) == 1
    pool.set_limit(fraction=0.5)
    assert pool.get_limit() == pytest.approx(properties // 2, abs=1)
    for nothing in ({}, {"size": 0}, {"fraction": 0}, {"size": 2 * properties}):
        pool.set_limit(fraction=0.5)
        pool.set_limit(**nothing)
        assert (pool.get_limit(), gpupool.get_per_process_memory_fraction()) == (0, 1)
    for wrong in ({"size": 1, "fraction": 0.5}, {"size": -1}, {"fraction": 1.5}, {"fraction": -0.5}):
        with pytest.raises(ValueError, match=r"specified at one time|out of range"):
            pool.set_limit(**wrong)


@pytest.mark.parametrize(("text", "part"), [("25%", 0.25), ("0", 1), ("quarter", 0.25)])
def test_the_limit_of_the_environment(monkeypatch, properties, text, part):
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", str(properties // 4) if text == "quarter" else text)
    gpupool.set_per_process_memory_fraction(0.75, 1)
    adapter.enable()
    adapter.enable()
    fractions = [gpupool.get_per_process_memory_fraction(device) for device in range(2)]
    assert fractions == [pytest.approx(part), pytest.approx(part)]
    # One that was changed meanwhile stays.
    gpupool.set_per_process_memory_fraction(0.5, 0)
    adapter.disable()
    fractions = [gpupool.get_per_process_memory_fraction(device) for device in range(2)]
    gpupool.set_per_process_memory_fraction(1, 1)
    assert fractions == [pytest.approx(0.5), pytest.approx(0.75)]


@pytest.mark.parametrize("text", ["much", "x%", "150%", "-1"])
def test_a_limit_of_the_environment_that_cannot_be(monkeypatch, text):
    former = cupy.cuda.get_allocator()
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", text)
    wrong = f"CUPY_GPU_MEMORY_LIMIT='{text}', .*(out of range|could not convert|invalid literal)"
    with pytest.raises(ValueError, match=wrong):
        adapter.enable()
    assert cupy.cuda.get_allocator() == former


@pytest.fixture
def bindings(monkeypatch):
    """Stand in for CuPy's bindings, which cannot be imported without their library, over simulated handles."""
    own = iter(range(1, 100))
    destroyed = []
    module = SimpleNamespace(__file__="cublas.so", create=lambda: next(own), destroy=destroyed.append)
    module.originals, module.destroyed = (module.create, module.destroy), destroyed
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs.cublas", module)
    monkeypatch.setattr(_cupy_handles, "_LIBRARIES", {"cublas": (gpupool.simulated, "create")})
    monkeypatch.setattr(_cupy_handles, "_address", lambda path, function: 1)
    return module


def in_thread(work):
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(work).result()


@pytest.fixture
def own_pinned(monkeypatch):
    """Stand in for CuPy's own pool of pinned memory, with something cached; set its ``cached``."""

    class Own:
        cached, emptied, served = 0, 0, 0

        def malloc(self, nbytes):
            # CuPy takes no bytes from nowhere.
            self.served += nbytes > 0
            return cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(0), 0)

        def n_free_blocks(self):
            return self.cached

        def free_all_blocks(self):
            self.cached, self.emptied = 0, self.emptied + 1

    own = Own()
    real = cupy.get_default_pinned_memory_pool()
    monkeypatch.setattr(cupy, "get_default_pinned_memory_pool", lambda: own)
    _cupy_pinned.allocator.cache_clear()
    cupy.cuda.set_pinned_memory_allocator(own.malloc)
    yield own
    adapter.disable()
    gpupool.set_pinned_limit(None)
    cupy.cuda.set_pinned_memory_allocator(real.malloc)
    _cupy_pinned.allocator.cache_clear()


def pinned_blocks():
    stats = gpupool.pinned_stats()
    return stats.live_blocks - stats.waiting_blocks


def test_pinned_arrays_are_gpupools_and_go_back_when_the_last_view_dies(own_pinned):
    adapter.enable(pinned=True)
    adapter.enable()
    before = pinned_blocks()
    array = cupyx.empty_pinned((3, 1000), "f4")
    assert (pinned_blocks(), array.base.size()) == (before + 1, array.nbytes)
    array[:] = numpy.arange(3000).reshape(3, 1000)
    zeros = cupyx.zeros_like_pinned(array)
    assert (zeros == 0).all()
    view = array[1:]
    del array, zeros
    assert (view[0] == numpy.arange(1000, 2000)).all()
    assert pinned_blocks() == before + 1
    del view
    assert (pinned_blocks(), own_pinned.served) == (before, 0)
    assert cupyx.empty_pinned((0, 5)).size == 0
    assert pinned_blocks() == before


def test_pinned_memory_ends_as_it_began(own_pinned):
    cupyx.empty_pinned(10)
    assert own_pinned.served == 1
    adapter.enable()
    cupyx.empty_pinned(10)
    assert own_pinned.served == 2
    adapter.enable(pinned=True)
    cupyx.empty_pinned(10)
    assert own_pinned.served == 2
    adapter.enable(pinned=False)
    cupyx.empty_pinned(10)
    assert (own_pinned.served, adapter.is_enabled()) == (3, True)
    own_pinned.served = 2
    adapter.enable(pinned=True)
    array = cupyx.empty_pinned(10)
    adapter.disable()
    assert not adapter.is_enabled()
    adapter.disable()
    cupyx.empty_pinned(10)
    assert own_pinned.served == 3
    # An array outlives that, and its memory goes where it came from.
    live = pinned_blocks()
    array[:] = 1
    del array
    assert pinned_blocks() == live - 1
    # What others set meanwhile stays.
    adapter.enable(pinned=True)
    theirs = type(own_pinned)()
    cupy.cuda.set_pinned_memory_allocator(theirs.malloc)
    adapter.disable()
    cupyx.empty_pinned(10)
    assert (own_pinned.served, theirs.served) == (3, 1)


def test_a_block_with_pinned_memory_is_its_threads_alone(own_pinned):
    def elsewhere():
        cupyx.empty_pinned(10)

    live = pinned_blocks()
    with adapter.using():
        cupyx.empty_pinned(10)
    assert own_pinned.served == 1
    with adapter.using(pinned=True):
        arrays = [cupyx.empty_pinned(10)]
        in_thread(elsewhere)
        assert own_pinned.served == 2
        with adapter.using(gpupool.MemPool(), pinned=True):
            arrays.append(cupyx.empty_pinned(10))
        arrays.append(cupyx.empty_pinned(10))
        assert (pinned_blocks(), own_pinned.served) == (live + 3, 2)
    with pytest.raises(RuntimeError), adapter.using(pinned=True):
        raise RuntimeError
    cupyx.empty_pinned(10)
    assert own_pinned.served == 3
    adapter.enable(pinned=True)
    with adapter.using(pinned=True):
        in_thread(elsewhere)
        in_thread(adapter.disable)
        # The block goes on for its own thread.
        arrays.append(cupyx.empty_pinned(10))
        assert (pinned_blocks(), own_pinned.served) == (live + 4, 3)
        in_thread(elsewhere)
        assert own_pinned.served == 4
    del arrays
    assert pinned_blocks() == live


def test_pinned_memory_waits_for_the_streams_that_are_recorded(own_pinned, current):
    adapter.enable(pinned=True)
    stream, other = gpupool.Stream(), gpupool.Stream()
    current.ptr = stream.ptr
    works = [_native.host_submit(stream), _native.host_submit(other)]
    array = cupyx.empty_pinned(32 * MIB, "u1")
    address = array.ctypes.data
    adapter.record_stream(array)
    adapter.record_stream(array[10:].reshape(2, -1), other)
    del array
    others = []
    for one, work in zip((stream, other), works, strict=True):
        others.append(cupyx.empty_pinned(32 * MIB, "u1"))
        assert others[-1].ctypes.data != address
        _native.host_complete(one, work)
    assert cupyx.empty_pinned(32 * MIB, "u1").ctypes.data == address
    # Unrecorded it is used again at once.
    _native.host_submit(stream)
    live = gpupool.pinned_stats().live_blocks
    del others
    assert gpupool.pinned_stats().live_blocks == live - 2
    for foreign in (numpy.zeros(10), memoryview(b"1234"), "text"):
        with pytest.raises(gpupool.InvalidValue, match="no pinned memory of gpupool's"):
            adapter.record_stream(foreign)


@pytest.mark.parametrize("capturing", [False, True])
def test_pinned_memory_that_runs_out_is_cupys_error(own_pinned, current, monkeypatch, capturing):
    monkeypatch.setattr(current, "is_capturing", lambda: capturing, raising=False)
    adapter.enable(pinned=True)
    gpupool.empty_cache()
    gpupool.set_pinned_limit(16 * MIB)
    own_pinned.cached = 3
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorMemoryAllocation") as raised:
        cupyx.empty_pinned(32 * MIB, "u1")
    assert (raised.value.status, own_pinned.emptied) == (2, int(not capturing))
    assert isinstance(raised.value.__cause__, gpupool.OutOfMemory)
    cycle = [cupyx.empty_pinned(12 * MIB, "u1")]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        assert cupyx.empty_pinned(12 * MIB, "u1").size == 12 * MIB
    finally:
        gc.enable()


def test_the_pinned_pools_methods_are_cupys(own_pinned):
    methods = {name for name in vars(cupy.cuda.PinnedMemoryPool) if not name.startswith("_")} - {"free"}
    assert methods == {name for name in vars(adapter.PinnedMemoryPool) if not name.startswith("_")}
    pool = adapter.get_default_pinned_memory_pool()
    assert pool is adapter.get_default_pinned_memory_pool()
    gpupool.empty_cache()
    assert pool.n_free_blocks() == 0
    pointers = [pool.malloc(3 * MIB) for _ in range(2)]
    assert [pointer.size() for pointer in pointers] == [3 * MIB] * 2
    del pointers
    assert pool.n_free_blocks() > 0
    device = gpupool.empty(3 * MIB)
    del device
    cached = gpupool.memory_stats().reserved_bytes
    pool.free_all_blocks()
    assert (pool.n_free_blocks(), gpupool.memory_stats().reserved_bytes) == (0, cached)


@pytest.mark.parametrize("threads", [1, 16])
def test_pinned_memory_of_threads_does_not_mix(own_pinned, threads):
    adapter.enable(pinned=True)
    together = threading.Barrier(threads, timeout=60)

    def work(number):
        together.wait()
        kept = []
        for turn in range(200):
            array = cupyx.empty_pinned(1000 + turn, "i8")
            array[:] = number * 1000 + turn
            kept.append(array)
            if turn % 3:
                del kept[turn % len(kept)]
        return all((array == array[0]).all() and array[0] // 1000 == number for array in kept)

    with ThreadPoolExecutor(threads) as executor:
        assert all(executor.map(work, range(threads)))


def test_handles_of_threads_go_back_to_the_pool(bindings):
    adapter.enable(handles=True)
    local, leased = threading.local(), gpupool.simulated.stats().leased

    def take():
        # As CuPy does: the handle is the thread's until it ends.
        local.handle = cupy.cuda.device.Handle(bindings.create(), bindings.destroy)
        assert gpupool.simulated.stats().leased == leased + 1
        handle = bindings.create()
        other = bindings.create()
        bindings.destroy(other)
        bindings.destroy(handle)
        return {handle, other}

    first, second = in_thread(take), in_thread(take)
    assert first & second
    assert (len(first), gpupool.simulated.stats().leased, bindings.destroyed) == (2, leased, [])


def test_handles_end_as_they_began(bindings):
    before = bindings.create()
    with adapter.using(), pytest.raises(ValueError, match="global allocator"):
        adapter.enable(handles=True)
    assert (bindings.create, bindings.destroy) == bindings.originals
    adapter.enable(handles=True)
    lending = bindings.create
    adapter.enable(handles=True)
    assert bindings.create is lending
    adapter.enable()
    assert bindings.create is lending
    adapter.enable(handles=False)
    assert (bindings.create, bindings.destroy) == bindings.originals
    adapter.enable(handles=True)
    lent = bindings.create()
    bindings.destroy(before)
    assert bindings.destroyed == [before]
    leased, destroy = gpupool.simulated.stats().leased, bindings.destroy
    adapter.disable()
    assert (bindings.create, bindings.destroy) == bindings.originals
    # Whoever has a handle has its end too.
    destroy(lent)
    assert (bindings.destroyed, gpupool.simulated.stats().leased) == ([before], leased - 1)


def test_handles_of_another_copy_of_a_library_are_refused(bindings, monkeypatch):
    former = cupy.cuda.get_allocator()
    monkeypatch.setattr(_cupy_handles, "_address", lambda path, function: path)
    with pytest.raises(gpupool.LibraryNotFound, match="another copy of cublas"):
        adapter.enable(handles=True)
    assert (bindings.create, bindings.destroy) == bindings.originals
    assert cupy.cuda.get_allocator() == former


def test_bindings_that_cannot_be_imported_are_named(bindings, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs.cublas", None)
    with pytest.raises(gpupool.LibraryNotFound, match="bindings of cublas cannot be imported"):
        adapter.enable(handles=True)


def test_a_function_is_found_through_what_a_library_needs():
    extension = ctypes.__spec__.loader and sys.modules["_ctypes"].__file__
    assert _cupy_handles._address(extension, "malloc") == _cupy_handles._address("libc.so.6", "malloc")
    assert _cupy_handles._address(extension, "malloc") != _cupy_handles._address("libc.so.6", "free")


# Another case calls the one that is named.
@pytest.mark.parametrize("check", [*functions_of("frameworks/cupy_streams.py"), "lives_as_long_as_its_arrays"])
def test_a_stream_of_cupys(monkeypatch, check):
    # NumPy's library has no threads then, which a fork would not have either.
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    forks.run_program("frameworks/cupy_streams.py", check, modules=("cupy_on_host",))


@pytest.mark.parametrize("order", [("cupy", "gpupool"), ("gpupool", "cupy")])
def test_exits_cleanly_with_live_arrays(order):
    run_program("frameworks/ends.py", "cupy", *order)
