"""Bytes between a GPU and the host, without a framework; CuPy looks at what is there, and captures."""

import threading
from concurrent.futures import ThreadPoolExecutor

import gpupool
import numpy as np
import pytest
from gpu_helpers import cupy, import_or_skip
from long_kernel import spin
from waiting import LONG

MIB = 1 << 20

# A fifth of a second or so.
SPIN_CYCLES = 400_000_000

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


@pytest.mark.parametrize("memory", ["ordinary", "pinned by CuPy"])
@pytest.mark.parametrize("nbytes", [100, 21 * MIB + 100])
def test_a_copy_behind_a_kernel_is_done_when_it_returns_while_another_stream_is_captured(nbytes, memory):
    stream = gpupool.Stream()
    if memory == "ordinary":
        host = np.empty(nbytes, np.uint8)
    else:
        # The driver copies such memory in the background.
        host = import_or_skip("cupyx").empty_pinned(nbytes, np.uint8)
    buffer, word = gpupool.empty(nbytes, stream), cupy.empty(1)

    def keep_busy(cycles):
        with cupy.cuda.ExternalStream(stream.ptr):
            spin(cycles)

    # Loaded before the capture, which loading would spoil.
    keep_busy(1)
    stream.synchronize()
    has_begun, may_end = threading.Event(), threading.Event()

    def capture():
        other = cupy.cuda.Stream(non_blocking=True)
        other.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        word.data.memset_async(0, word.nbytes, other)
        has_begun.set()
        assert may_end.wait(LONG)
        # This fails if anything has spoilt the capture.
        other.end_capture()

    with ThreadPoolExecutor(1) as executor:
        captured = executor.submit(capture)
        try:
            assert has_begun.wait(LONG)
            for value in (3, 4):
                host[:] = value
                keep_busy(SPIN_CYCLES)
                buffer.copy_from(host)
                host[:] = 0
                keep_busy(SPIN_CYCLES)
                assert bytes(buffer) == bytes([value]) * nbytes
                keep_busy(SPIN_CYCLES)
                buffer.copy_to(host)
                assert (host == value).all()
        finally:
            may_end.set()
        captured.result()
