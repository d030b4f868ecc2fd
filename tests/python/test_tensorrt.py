"""TensorRT's memory from gpupool, in C++ over a double of its header, or its own, in Python over one of its package.

Its own headers are used where GPUPOOL_TENSORRT_INCLUDE names their folder; CUDA's, which they need, come from a wheel.
"""

import ctypes
import gc
import importlib
import sys
from concurrent.futures import ThreadPoolExecutor

import gpupool
import pytest
from cpp_programs import ROOT, STRICT, allocators, build, find_library, headers_of, link, load, run, sanitizer
from gpupool import _native
from own_memory import MIB, Work, other_thread
from running import run_bare_program

SOURCE = ROOT / "tests" / "cpp" / "tensorrt_allocator.cpp"


def headers():
    return headers_of("tensorrt", "GPUPOOL_TENSORRT_INCLUDE", ("nvidia", "cu13", "include"))


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_in_cpp_it_gives_memory_or_a_reason(tmp_path, standard):
    options = [f"-std={standard}", *STRICT, *headers(), *sanitizer(), *link(find_library())]
    assert run(build("c++", SOURCE, tmp_path / "program", *options)) == ""


class InCpp:
    """gpupool_tensorrt.hpp's allocator, called as TensorRT calls one."""

    def __init__(self, functions, pool):
        pointer, number = ctypes.c_void_p, ctypes.c_uint64
        types = {
            "make_allocator_of": (pointer, number, number),
            "delete_allocator": (None, pointer),
            "allocate": (pointer, pointer, number, number, pointer),
            "deallocate": (ctypes.c_bool, pointer, pointer, pointer),
            "allocate_at_once": (pointer, pointer, number),
            "last_error_has": (ctypes.c_bool, pointer, ctypes.c_char_p),
        }
        for name, (returned, *arguments) in types.items():
            function = getattr(functions, name)
            function.restype, function.argtypes = returned, arguments
        self.functions = functions
        self.own = functions.make_allocator_of(*pool.id)

    def allocate(self, size, stream=0, alignment=256):
        return self.functions.allocate(self.own, size, alignment, stream) or 0

    def allocate_at_once(self, size):
        return self.functions.allocate_at_once(self.own, size) or 0

    def deallocate(self, memory, stream=0):
        return self.functions.deallocate(self.own, memory, stream)

    def failed_for(self, text):
        return self.functions.last_error_has(self.own, text.encode())

    def end(self):
        self.functions.delete_allocator(self.own)


class InPython:
    """gpupool.tensorrt.Allocator, called as TensorRT's bindings call one."""

    def __init__(self, tensorrt, pool):
        self.reported = tensorrt.reported
        self.own = gpupool.tensorrt.Allocator(pool)
        tensorrt.Runtime().gpu_allocator = self.own

    def allocate(self, size, stream=0, alignment=256):
        return self.own.asked_for(size, alignment, 0, stream)

    def deallocate(self, memory, stream=0):
        return self.own.given_back(memory, stream)

    def failed_for(self, text):
        return text in str(self.own.last_error)

    def end(self):
        assert self.reported == []
        del self.own
        gc.collect()


@pytest.fixture
def tensorrt(monkeypatch):
    """Return the double of TensorRT's package."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "doubles"))
    names = ("tensorrt", "gpupool.tensorrt._allocator")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("tensorrt")
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """Return the functions of the program in C++, which use this process's gpupool."""
    return load(find_library(), tmp_path_factory.mktemp("tensorrt"), SOURCE, *headers())


@pytest.fixture(params=["C++", "Python"])
def make(request, nothing_left):
    """Return what makes an allocator of a pool, in either language."""
    name, kind = ("functions", InCpp) if request.param == "C++" else ("tensorrt", InPython)
    with allocators(kind, request.getfixturevalue(name)) as make:
        yield make


def test_memory_is_the_pools_in_the_order_of_the_stream(make):
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    allocator = make(pool)
    for alignment in (0, 1, 256, 512):
        memory = allocator.allocate(3 * MIB, stream.ptr, alignment)
        assert memory % max(alignment, 1) == 0
        assert pool.stats().requested_bytes == 3 * MIB
        [block] = [each for part in pool.snapshot() for each in part["blocks"] if each["address"] == memory]
        assert block["state"] == "active_allocated"
        assert {part["stream"] for part in pool.snapshot()} == {stream.ptr}
        assert allocator.deallocate(memory, stream.ptr)
    assert pool.stats().live_blocks == 0


def test_what_is_freed_on_another_stream_waits_for_that_one(make):
    pool, stream, other = gpupool.MemPool(), gpupool.Stream(), gpupool.Stream()
    allocator = make(pool)
    memory = allocator.allocate(3 * MIB, stream.ptr)
    work = _native.host_submit(other)
    assert allocator.deallocate(memory, other.ptr)
    meanwhile = allocator.allocate(3 * MIB, stream.ptr)
    assert meanwhile != memory
    assert not other.query()
    _native.host_complete(other, work)
    assert allocator.deallocate(meanwhile, stream.ptr)
    # In the order of its own stream it is there at once, while the stream works.
    work = _native.host_submit(stream)
    assert allocator.allocate(3 * MIB, stream.ptr) == meanwhile
    assert not stream.query()
    assert allocator.deallocate(meanwhile, stream.ptr)
    _native.host_complete(stream, work)


def test_what_is_freed_on_a_stream_that_is_gone_follows_the_legacy_default_stream(make):
    pool = gpupool.MemPool()
    allocator = make(pool)
    gone = _native.host_create_stream(0, True)
    memory = allocator.allocate(MIB, gone)
    _native.host_destroy_stream(gone)
    assert allocator.deallocate(memory, gone)
    # In Python it waits for all work so far, until the next request.
    stats = pool.stats()
    assert stats.live_blocks == stats.waiting_blocks


def test_without_memory_there_is_no_address_but_a_reason(make):
    pool = gpupool.MemPool(limit=16 * MIB)
    allocator = make(pool)
    memory = allocator.allocate(12 * MIB)
    assert memory
    assert allocator.allocate(12 * MIB) == 0
    assert allocator.failed_for("tried to allocate")
    assert allocator.deallocate(memory)
    memory = allocator.allocate(12 * MIB)
    assert memory
    assert allocator.deallocate(memory)


def test_nothing_is_asked_for_and_nothing_is_freed(make):
    allocator = make(gpupool.MemPool())
    assert allocator.allocate(0) == 0
    assert allocator.deallocate(0)
    assert not allocator.failed_for("alignment")


def test_wrong_calls_are_refused_with_a_reason(make):
    pool = gpupool.MemPool()
    allocator = make(pool)
    for alignment in (3, 1024):
        assert allocator.allocate(MIB, 0, alignment) == 0
        assert allocator.failed_for("alignment must be a power of two up to 512")
    memory = allocator.allocate(MIB)
    assert allocator.deallocate(memory)
    assert not allocator.deallocate(memory)
    assert allocator.failed_for(f"{memory:#x}")
    assert pool.stats().live_blocks == 0


def test_a_pool_that_sleeps_gives_nothing(make):
    pool = gpupool.MemPool()
    allocator = make(pool)
    memory = allocator.allocate(MIB)
    pool.sleep()
    assert allocator.allocate(MIB) == 0
    assert allocator.failed_for("asleep")
    assert allocator.deallocate(memory)
    pool.wake()


def test_threads_share_an_allocator(make):
    pool = gpupool.MemPool()
    allocator = make(pool)

    def work(number):
        stream = gpupool.Stream()
        for size in range(1, 40):
            memory = allocator.allocate(size * 70_000, stream.ptr)
            assert memory
            assert allocator.deallocate(memory, stream.ptr)
        return number

    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(work, range(4))) == [0, 1, 2, 3]
    assert pool.stats().live_blocks == 0


def test_without_a_stream_memory_is_ready_for_every_stream(functions, nothing_left):
    pool = gpupool.MemPool()
    allocator = InCpp(functions, pool)
    memory = allocator.allocate_at_once(3 * MIB)
    with Work() as work:
        assert allocator.deallocate(memory)
        # In the order of the legacy default stream it is there, but other streams may still use it.
        assert allocator.allocate(3 * MIB) == memory
        assert not work.is_done()
        assert allocator.deallocate(memory)
        assert allocator.allocate_at_once(3 * MIB) == memory
        assert work.is_done()
        assert allocator.deallocate(memory)
    allocator.end()


@pytest.mark.usefixtures("nothing_left")
def test_without_a_pool_the_threads_scope_counts(tensorrt):
    allocator, pool = gpupool.tensorrt.Allocator(), gpupool.MemPool()
    default = allocator.asked_for(MIB, 256, 0, 0)
    assert pool.stats().live_blocks == 0
    with gpupool.use_mem_pool(pool):
        scoped = allocator.asked_for(MIB, 256, 0, 0)
    assert pool.stats().live_blocks == 1
    assert allocator.given_back(default, 0)
    assert allocator.given_back(scoped, 0)
    assert repr(allocator) == "gpupool.tensorrt.Allocator(pool=None)"


@pytest.mark.usefixtures("nothing_left")
def test_a_pools_token_serves_other_threads(tensorrt):
    pool = gpupool.MemPool()
    allocator = gpupool.tensorrt.Allocator(pool.token())
    with other_thread() as on_it:
        memory = on_it(allocator.asked_for, MIB, 256, 0, 0)
        assert pool.stats().live_blocks == 1
        assert on_it(allocator.given_back, memory, 0)


@pytest.mark.usefixtures("nothing_left")
def test_the_stream_is_found_whichever_of_the_last_two_it_is(tensorrt):
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    allocator = gpupool.tensorrt.Allocator(pool)
    # As TensorRT passes them, as it documents them, and with the flag for memory that may be resized.
    for last in ((stream.ptr, 0), (0, stream.ptr), (stream.ptr, 1)):
        memory = allocator.allocate_async(3 * MIB, 256, *last)
        assert {part["stream"] for part in pool.snapshot()} == {stream.ptr}
        assert allocator.deallocate_async(memory, stream.ptr)
    memory = allocator.allocate_async(MIB, 256, 0, 1)
    assert allocator.deallocate_async(memory, 0)
    assert allocator.last_error is None


def test_memory_is_not_resized(tensorrt):
    allocator = gpupool.tensorrt.Allocator()
    assert allocator.resized(1 << 20, 256, 1 << 21) == 0
    assert tensorrt.reported == []


def test_what_is_no_pool_is_refused(tensorrt):
    with pytest.raises(gpupool.InvalidValue, match="pool is 'mine': give a MemPool"):
        gpupool.tensorrt.Allocator("mine")


def test_without_tensorrt_that_is_said(tmp_path):
    run_bare_program("importing/missing.py", "tensorrt", "tensorrt cannot be imported", "pip install 'tensorrt>=10'")
    (tmp_path / "tensorrt.py").write_text("__version__ = '8.6.1'\n")
    old = "tensorrt 8.6.1 is too old: 10 is needed"
    run_bare_program("importing/missing.py", "tensorrt", old, PYTHONPATH=str(tmp_path))
