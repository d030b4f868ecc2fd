"""A stream that a buffer was recorded on lives until the buffer is freed: the driver crashes where it is gone."""

import weakref

import gpupool
import numpy as np
import pytest


class FrameworkStream:
    """A framework's stream, which destroys it at its end."""

    def __init__(self):
        self._stream = gpupool.Stream()
        self.is_asked = False

    def __cuda_stream__(self):
        self.is_asked = True
        return 0, self._stream.ptr


MAKERS = {
    "empty": lambda: gpupool.empty(4096),
    "empty_pinned": lambda: gpupool.empty_pinned(4096),
    "CuPy's": lambda: gpupool._native.CupyPinnedMemory(4096),
}
ENDS = {
    **{f"the end of {name}": (make, list.clear) for name, make in MAKERS.items()},
    **{f"a free of {name}": (MAKERS[name], lambda held: held[0].free()) for name in ("empty", "empty_pinned")},
}


@pytest.mark.parametrize(("make", "end"), ENDS.values(), ids=ENDS)
def test_a_recorded_stream_lives_until_the_buffer_is_freed(make, end):
    held, stream = [make()], FrameworkStream()
    for _ in range(2):
        held[0].record_stream(stream)
    alive = weakref.ref(stream)
    del stream
    assert alive().is_asked
    end(held)
    assert alive() is None


def test_the_stream_that_pinned_memory_is_made_for_lives_as_long():
    stream = FrameworkStream()
    buffer, alive = gpupool.empty_pinned(4096, stream), weakref.ref(stream)
    del stream
    assert alive() is not None
    del buffer
    assert alive() is None


def test_what_has_the_memory_by_dlpack_frees_it_without_the_stream():
    buffer, stream = gpupool.empty_pinned(4096), FrameworkStream()
    buffer.record_stream(stream)
    alive, array = weakref.ref(stream), np.from_dlpack(buffer)
    del stream, buffer
    assert alive() is None
    array[:] = 1
    frees = gpupool.pinned_stats().frees
    del array
    gpupool.empty_cache()
    assert gpupool.pinned_stats().frees > frees


def test_an_address_is_in_the_callers_care():
    stream = gpupool.Stream()
    buffer = gpupool.empty_pinned(4096, stream.ptr)
    buffer.record_stream(stream.ptr)
    buffer.free()
