"""OpenCV's matrices in gpupool's memory, in C++: over a double of its headers, or its own, and a double of its library.

Its own headers are used where GPUPOOL_OPENCV_INCLUDE names their folders, separated by colons.
"""

import ctypes

import gpupool
import pytest
from cpp_programs import ROOT, STRICT, build, find_library, headers_of, link, load, run, sanitizer
from gpupool import _native
from own_memory import MIB, Work

SOURCE = ROOT / "tests" / "cpp" / "opencv_allocator.cpp"


def headers():
    return headers_of("opencv", "GPUPOOL_OPENCV_INCLUDE")


@pytest.fixture(scope="module")
def opencv(tmp_path_factory):
    """Compile the double of OpenCV's library, for all programs."""
    source, out = ROOT / "tests" / "doubles" / "opencv" / "library.cpp", tmp_path_factory.mktemp("double") / "library.o"
    return str(build("c++", source, out, "-c", "-fPIC", "-std=c++17", *STRICT, *headers()))


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_matrices_have_memory_laid_out_as_opencvs(opencv, tmp_path, standard):
    options = [opencv, f"-std={standard}", *STRICT, *headers(), *sanitizer(), *link(find_library())]
    assert run(build("c++", SOURCE, tmp_path / "program", *options)) == ""


class Allocator:
    """gpupool_opencv.hpp's allocator of a pool, with matrices of bytes."""

    def __init__(self, functions, pool):
        self.functions, self.own = functions, functions.make_allocator(*pool.id)

    def set_stream(self, stream):
        self.functions.set_stream(self.own, stream)

    def matrix(self, rows, cols):
        why = ctypes.create_string_buffer(4096)
        made = self.functions.make_matrix(self.own, rows, cols, why, len(why))
        if not made:
            raise MemoryError(why.value.decode())
        return made

    def address(self, matrix):
        return self.functions.data_of(matrix)

    def release(self, matrix):
        self.functions.delete_matrix(matrix)


@pytest.fixture(scope="module")
def functions(opencv, tmp_path_factory):
    """Return the functions of the program in C++, which use this process's gpupool."""
    found = load(find_library(), tmp_path_factory.mktemp("opencv"), SOURCE, opencv, *headers())
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    types = {
        "make_allocator": (pointer, number, number),
        "delete_allocator": (None, pointer),
        "set_stream": (None, pointer, pointer),
        "make_matrix": (pointer, pointer, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t),
        "data_of": (pointer, pointer),
        "delete_matrix": (None, pointer),
    }
    for name, (returned, *arguments) in types.items():
        function = getattr(found, name)
        function.restype, function.argtypes = returned, arguments
    return found


@pytest.fixture
def pool():
    return gpupool.MemPool()


@pytest.fixture
def allocator(functions, pool, nothing_left):
    made = Allocator(functions, pool)
    yield made
    functions.delete_allocator(made.own)


def test_a_matrix_gets_memory_once_the_work_before_its_last_owner_went_is_done(allocator, pool):
    first = allocator.matrix(1500, 2048)
    address = allocator.address(first)
    with Work() as work:
        allocator.release(first)
        assert not work.is_done()  # a release does not wait
        second = allocator.matrix(1500, 2048)
        assert allocator.address(second) == address
        assert work.is_done()
        allocator.release(second)
    assert pool.stats().live_blocks == 0


def test_with_a_stream_nothing_waits(allocator, pool):
    stream = gpupool.Stream()
    allocator.set_stream(stream.ptr)
    first = allocator.matrix(1500, 2048)
    address = allocator.address(first)
    assert {part["stream"] for part in pool.snapshot()} == {stream.ptr}
    number = _native.host_submit(stream)
    with Work() as work:
        allocator.release(first)
        second = allocator.matrix(1500, 2048)
        assert allocator.address(second) == address
        assert not work.is_done()
    assert not stream.query()
    _native.host_complete(stream, number)
    # Memory of before is freed in its own order.
    allocator.set_stream(None)
    allocator.release(second)
    assert pool.stats().live_blocks == 0


def test_a_limit_is_opencvs_error_with_a_reason(functions, nothing_left):
    allocator = Allocator(functions, gpupool.MemPool(limit=16 * MIB))
    kept = allocator.matrix(6 * 1024, 2048)
    with pytest.raises(MemoryError, match=r"^-4: .*tried to allocate"):  # StsNoMem
        allocator.matrix(6 * 1024, 2048)
    allocator.release(kept)
    allocator.release(allocator.matrix(6 * 1024, 2048))
    functions.delete_allocator(allocator.own)


def test_what_else_fails_is_an_error_of_the_gpu(allocator, pool):
    kept = allocator.matrix(1500, 2048)
    pool.sleep()
    with pytest.raises(MemoryError, match=r"^-217: .*asleep"):  # GpuApiCallError
        allocator.matrix(1500, 2048)
    allocator.release(kept)
    pool.wake()


def test_during_a_capture_of_a_blocking_stream_a_matrix_is_refused(allocator, pool):
    stream = _native.host_create_stream(0, True)
    _native.host_begin_capture(stream)
    try:
        with pytest.raises(MemoryError, match=r"^-217: .*captur"):
            allocator.matrix(1500, 2048)
    finally:
        _native.host_end_capture(stream)
        _native.host_destroy_stream(stream)
    assert pool.stats().live_blocks == 0
