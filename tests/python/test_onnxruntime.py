"""ONNX Runtime's memory from gpupool: in C++ over a double of its header, or its own; in Python by functions in C.

Its own header is used where GPUPOOL_ONNXRUNTIME_INCLUDE names its folder, and ONNX Runtime itself, on its CPU provider,
where its wheel is installed besides.
"""

import ctypes
import os
import re
import subprocess

import gpupool
import numpy as np
import onnx_model
import pytest
from cpp_programs import (
    ROOT,
    STRICT,
    allocators,
    build,
    find_library,
    folder_of,
    headers_of,
    link,
    load,
    run,
    sanitizer,
)
from gpupool import _native
from own_memory import MIB
from processes import start_python, succeeded

VARIABLE = "GPUPOOL_ONNXRUNTIME_INCLUDE"
SOURCE = ROOT / "tests" / "cpp" / "onnxruntime_allocator.cpp"


def headers():
    return headers_of("onnxruntime", VARIABLE)


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_in_cpp_it_gives_memory_or_says_why_not(tmp_path, standard):
    options = [f"-std={standard}", *STRICT, *headers(), *sanitizer(), *link(find_library())]
    assert run(build("c++", SOURCE, tmp_path / "program", *options)) == ""


def test_before_it_could_shrink_it_does_not(tmp_path):
    if VARIABLE in os.environ:
        pytest.skip(f"{VARIABLE} names the header of one version")
    options = ["-std=c++17", "-DORT_API_VERSION=23", *STRICT, *headers(), *link(find_library())]
    assert run(build("c++", SOURCE, tmp_path / "program", *options)) == ""


def test_an_older_onnx_runtime_is_refused_when_compiling(tmp_path):
    command = ["c++", "-std=c++17", "-DORT_API_VERSION=22", f"-I{gpupool.get_include()}", "-fsyntax-only", "-x", "c++"]
    double = f"-I{ROOT / 'tests' / 'doubles' / 'onnxruntime'}"
    done = subprocess.run([*command, double, str(SOURCE)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "needs ONNX Runtime 1.23 or later" in done.stderr


class Allocator:
    """gpupool_onnxruntime.hpp's allocator, called as ONNX Runtime calls one; for what it throws there is None."""

    def __init__(self, functions, pool):
        pointer, number, size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
        types = {
            "make_allocator": (pointer, number, number),
            "delete_allocator": (None, pointer),
            "allocate": (pointer, pointer, size),
            "reserve": (pointer, pointer, size),
            "allocate_on": (pointer, pointer, size, pointer),
            "allocate_on_none": (pointer, pointer, size),
            "deallocate": (None, pointer, pointer),
            "thrown_has": (ctypes.c_bool, ctypes.c_char_p),
        }
        for name, (returned, *arguments) in types.items():
            function = getattr(functions, name)
            function.restype, function.argtypes = returned, arguments
        self.functions = functions
        self.own = functions.make_allocator(*pool.id)

    def allocate(self, size, way="allocate"):
        return getattr(self.functions, way)(self.own, size)

    def allocate_on(self, size, stream):
        return self.functions.allocate_on(self.own, size, stream.ptr)

    def free(self, memory):
        self.functions.deallocate(self.own, memory)

    def threw(self, text):
        return self.functions.thrown_has(text.encode())

    def end(self):
        self.functions.delete_allocator(self.own)


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """Return the functions of the program in C++, which use this process's gpupool."""
    return load(find_library(), tmp_path_factory.mktemp("onnxruntime"), SOURCE, *headers())


@pytest.fixture
def make(functions, nothing_left):
    """Return what makes an allocator of a pool."""
    with allocators(Allocator, functions) as make:
        yield make


def test_where_a_stream_is_named_memory_follows_it(make):
    pool, stream, other = gpupool.MemPool(), gpupool.Stream(), gpupool.Stream()
    allocator = make(pool)
    memory = allocator.allocate_on(3 * MIB, stream)
    assert {part["stream"] for part in pool.snapshot()} == {stream.ptr}
    work = _native.host_submit(stream)
    # ONNX Runtime frees while its kernels run, and names no stream.
    allocator.free(memory)
    assert allocator.allocate_on(3 * MIB, stream) == memory
    allocator.free(memory)
    for elsewhere in (allocator.allocate_on(3 * MIB, other), allocator.allocate(3 * MIB)):
        assert elsewhere != memory
        allocator.free(elsewhere)
    assert not stream.query()
    _native.host_complete(stream, work)
    stats = pool.stats()
    assert stats.live_blocks == stats.waiting_blocks


@pytest.mark.parametrize("way", ["allocate", "reserve", "allocate_on_none"])
def test_where_none_is_named_memory_waits_for_all_work(make, way):
    pool, unnamed, other = gpupool.MemPool(), gpupool.Stream(), gpupool.Stream()
    allocator = make(pool)
    memory = allocator.allocate(3 * MIB, way)
    work = _native.host_submit(unnamed)
    allocator.free(memory)
    assert pool.stats().waiting_blocks == 1
    for elsewhere in (allocator.allocate(3 * MIB, way), allocator.allocate_on(3 * MIB, other)):
        assert elsewhere != memory
        allocator.free(elsewhere)
    _native.host_complete(unnamed, work)
    assert allocator.allocate(3 * MIB, way) == memory
    allocator.free(memory)


def test_memory_may_be_freed_after_its_stream_is_gone(make):
    pool = gpupool.MemPool()
    allocator = make(pool)
    gone = _native.host_create_stream(0, True)
    memory = allocator.functions.allocate_on(allocator.own, MIB, gone)
    _native.host_destroy_stream(gone)
    allocator.free(memory)
    assert pool.stats().live_blocks == 0


def test_scopes_do_not_matter(make):
    pool, scoped, stream = gpupool.MemPool(), gpupool.MemPool(), gpupool.Stream()
    allocator = make(pool)
    with gpupool.use_mem_pool(scoped):
        memory = [allocator.allocate(MIB), allocator.allocate_on(MIB, stream)]
    assert (pool.stats().live_bytes, scoped.stats().live_bytes) == (2 * MIB, 0)
    for each in memory:
        allocator.free(each)


def test_limits_and_sleep_are_the_pools(make):
    pool, stream = gpupool.MemPool(limit=16 * MIB), gpupool.Stream()
    allocator = make(pool)
    memory = allocator.allocate(12 * MIB)
    for ask in (lambda: allocator.allocate(12 * MIB), lambda: allocator.allocate_on(12 * MIB, stream)):
        assert ask() is None
        assert allocator.threw("tried to allocate 12.0 MiB")
    pool.sleep()
    assert allocator.allocate_on(MIB, stream) is None
    assert allocator.threw("asleep")
    allocator.free(memory)
    pool.wake()


class Provider:
    """What ONNX Runtime's CUDA provider does with its options gpu_external_*: see CUDAExternalAllocator."""

    def __init__(self, options):
        assert all(isinstance(value, str) for value in options.values())
        forms = {"alloc": (ctypes.c_void_p, ctypes.c_size_t), "free": (None, ctypes.c_void_p), "empty_cache": (None,)}
        addresses = {name: int(options.get(f"gpu_external_{name}", "0")) for name in forms}
        self.calls = {name: ctypes.CFUNCTYPE(*form)(addresses[name]) for name, form in forms.items() if addresses[name]}
        self.device = int(options.get("device_id", "0"))
        self.reserved = set()

    def allocate(self, size, *, is_weight=False):
        memory = self.calls["alloc"](size)
        if is_weight:
            self.reserved.add(memory)
        return memory

    def free(self, memory):
        self.calls["free"](memory)
        if memory in self.reserved and "empty_cache" in self.calls:
            self.reserved.remove(memory)
            self.calls["empty_cache"]()


def test_the_provider_gets_its_memory_by_functions_in_c(nothing_left):
    pool = gpupool.MemPool(limit=64 * MIB, device=1)
    provider = Provider(gpupool.onnxruntime.provider_options(pool))
    assert provider.device == 1
    memory = provider.allocate(3 * MIB, is_weight=True), provider.allocate(MIB)
    assert pool.stats().live_bytes == 4 * MIB
    assert provider.allocate(128 * MIB) is None
    for each in memory:
        provider.free(each)
    assert pool.stats().live_bytes == 0
    # What sessions have had is there for the next one.
    assert pool.stats().reserved_bytes > 0


def test_weights_that_are_freed_go_back_to_the_driver_if_asked():
    pool = gpupool.MemPool()
    provider = Provider(gpupool.onnxruntime.provider_options(pool, empty_cache=True))
    provider.free(provider.allocate(3 * MIB))
    assert pool.stats().reserved_bytes > 0
    provider.free(provider.allocate(3 * MIB, is_weight=True))
    assert pool.stats().reserved_bytes == 0


def test_without_a_pool_it_is_the_default_one(nothing_left):
    options = gpupool.onnxruntime.provider_options()
    assert options.keys() == {"gpu_external_alloc", "gpu_external_free"}
    before = gpupool.memory_stats(0).live_bytes
    provider = Provider(options)
    memory = provider.allocate(MIB)
    assert gpupool.memory_stats(0).live_bytes == before + MIB
    provider.free(memory)


def test_what_is_no_pool_is_refused():
    with pytest.raises(gpupool.InvalidValue, match="pool is 'mine': give a MemPool"):
        gpupool.onnxruntime.provider_options("mine")


def test_the_example_shows_the_functions_where_there_is_no_provider():
    output = succeeded(start_python(ROOT / "examples" / "session_onnxruntime.py"))
    assert "in use            3 blocks, 4 MiB" in output
    assert "still in use      0 blocks" in output


def test_onnx_runtime_itself_computes_in_a_pools_memory(tmp_path):
    if VARIABLE not in os.environ:
        pytest.skip("needs ONNX Runtime's headers")
    [library] = folder_of("onnxruntime", "capi").glob("libonnxruntime.so.*")
    # By the name that programs are linked with.
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)
    source = ROOT / "tests" / "cpp" / "onnxruntime_session.cpp"
    own = [f"-L{tmp_path}", "-l:libonnxruntime.so.1", f"-Wl,-rpath,{tmp_path}"]
    program = build("c++", source, tmp_path / "program", "-std=c++17", *STRICT, *headers(), *own, *link(find_library()))

    rows, size = 1 << 14, 64
    random = np.random.default_rng(0)
    weights = [random.standard_normal((size, size), dtype=np.float32) / size**0.5 for _ in range(4)]
    model = tmp_path / "model.onnx"
    model.write_bytes(onnx_model.chain(weights, rows))
    environment = {**os.environ, "GPUPOOL_RUNTIME": "host"}
    done = subprocess.run(
        [program, model, str(rows), str(size)], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    *runs, why = done.stdout.splitlines()

    expected = (-1 + 2 * np.arange(rows * size, dtype=np.float32) / (rows * size)).reshape(rows, size)
    for matrix in weights:
        expected = np.maximum(expected @ matrix, 0)
    assert len(runs) == 3
    for line in runs:
        found = np.array([float.fromhex(text) for text in line.split()], np.float32).reshape(rows, size)
        assert np.allclose(found, expected, atol=1e-4)
    assert re.match(r"out of memory on device 0: tried to allocate \d+\.0 MiB", why)
