"""Bytes between a GPU and the host, without a framework; CuPy looks at what is there, and captures."""

import array

import gpupool
import numpy as np
import pytest
from gpu_helpers import cupy

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not hasattr(gpupool.DeviceBuffer, "copy_from"), reason="needs DeviceBuffer.copy_from")


@pytest.mark.parametrize("nbytes", [1, 70_001, 64 * MIB])
def test_bytes_go_there_and_back(nbytes):
    stream = gpupool.Stream()
    buffer, content = gpupool.empty(nbytes, stream), np.random.default_rng(1).bytes(nbytes)
    buffer.copy_from(content)
    assert bytes(buffer) == content
    assert (cupy.asarray(buffer).get() == np.frombuffer(content, np.uint8)).all()
    buffer.fill(7)
    read = bytearray(nbytes)
    buffer.copy_to(read)
    assert read == bytes([7]) * nbytes


def test_pinned_memory_is_copied_in_stream_order():
    stream = gpupool.Stream()
    buffer, pinned, target = (
        gpupool.empty(64 * MIB, stream),
        gpupool.empty_pinned(64 * MIB),
        gpupool.empty_pinned(64 * MIB),
    )
    for value in range(8):
        view = np.frombuffer(pinned, np.uint8)
        view[:] = value
        buffer.copy_from(view)
        buffer.copy_to(target)
        stream.synchronize()
        assert (np.frombuffer(target, np.uint8) == value).all()


def test_a_graph_copies_from_pinned_memory_at_each_replay():
    stream = cupy.cuda.Stream(non_blocking=True)
    buffer, pinned = gpupool.empty(8, stream), gpupool.empty_pinned(8)
    memoryview(pinned)[:] = b"captured"
    buffer.fill(0, stream)
    stream.begin_capture()
    buffer.copy_from(pinned, stream)
    with pytest.raises(gpupool.InvalidValue, match="captured"):
        buffer.copy_from(b"refused!", stream)
    graph = stream.end_capture()
    assert bytes(buffer) == bytes(8)
    for content in (b"first go", b"next one"):
        memoryview(pinned)[:] = content
        graph.launch(stream)
        assert bytes(buffer) == content


def test_a_device_is_waited_for():
    stream = gpupool.Stream()
    with stream:
        assert gpupool.current_stream() == stream
        buffer = gpupool.empty(256 * MIB)
        for value in range(16):
            buffer.fill(value)
    gpupool.synchronize()
    assert stream.query()


def test_numpy_is_told_how_to_read_a_buffer():
    buffer = gpupool.empty(8)
    buffer.copy_from(array.array("d", [2.5]))
    with pytest.raises(TypeError, match="frombuffer"):
        np.asarray(buffer)
    assert np.frombuffer(bytes(buffer), np.float64) == [2.5]
