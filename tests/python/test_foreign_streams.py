"""Streams that gpupool did not make may be gone at any time; what calls free on them while they live serves others."""

from types import SimpleNamespace

import gpupool
import pytest
from gpupool import _native
from own_memory import MIB


class Stream:
    """A framework's stream, destroyed with its object."""

    null = None

    def __init__(self):
        self.ptr = _native.host_create_stream(0)

    def __del__(self):
        _native.host_destroy_stream(self.ptr)


def kept(nbytes, stream):
    """Return a buffer that keeps its stream's object alive, as one of CuPy's arrays does."""
    cuda = SimpleNamespace(
        Stream=Stream,
        stream=None,
        get_current_stream=lambda: stream,
        UnownedMemory=lambda address, size, owner, device: owner,
        MemoryPointer=lambda memory, offset: memory,
    )
    return _native.CupyAllocator(cuda, print).malloc(nbytes)


def reserved():
    return gpupool.memory_stats().reserved_bytes


@pytest.fixture(autouse=True)
def looked_for(nothing_left):
    """See that a request has passed over memory of a foreign stream."""
    streams = [Stream(), Stream()]
    for stream in streams:
        gpupool.empty(4 * MIB, stream.ptr).free()
    yield
    gpupool.empty_cache()


def test_a_stream_that_is_named_lends_what_is_freed_and_one_that_nobody_names_is_not_touched():
    for _ in range(3):
        stream = Stream()
        buffer = gpupool.empty(20 * MIB, stream.ptr)
        del stream
        buffer.free()
    assert reserved() >= 60 * MIB
    gpupool.empty_cache()
    assert reserved() == 0
    for _ in range(20):
        stream = Stream()
        gpupool.empty(20 * MIB, stream.ptr).free(stream.ptr)
    assert reserved() < 2 * 24 * MIB


@pytest.mark.parametrize("end", [lambda buffer: buffer.free(), lambda buffer: None], ids=["free", "death"])
def test_a_buffer_that_keeps_its_stream_frees_on_it(end):
    streams = []
    for _ in range(20):
        stream = Stream()
        streams.append(stream.ptr)
        buffer = kept(20 * MIB, stream)
        del stream
        gpupool.empty(1000, streams[-1])  # It is there.
        end(buffer)
        del buffer
    for address in streams:
        with pytest.raises(gpupool.LibraryError):
            _native.host_submit(address)
    assert reserved() < 2 * 24 * MIB


def test_what_is_exported_outlives_the_stream_it_was_allocated_on():
    numpy = pytest.importorskip("numpy")
    stream = Stream()
    array = numpy.from_dlpack(kept(1000, stream))
    del stream
    array[:] = 7
    assert array.sum() == 7000
