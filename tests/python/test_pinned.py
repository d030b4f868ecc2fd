"""Pinned memory: what the host does with it, who keeps it, and what it waits for."""

import gc

import gpupool
import numpy
import pytest
from gpupool import _native
from own_memory import MIB
from running import run_example
from waiting import wait_until

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _no_pinned_memory():
    """Start each test without cached pinned memory, and check that it leaves no block."""
    gpupool.empty_cache()
    wait_until(lambda: gpupool.pinned_stats().reserved_bytes == 0, "no pinned memory is left")
    yield
    gpupool.set_pinned_limit(None)
    gc.collect()
    # What waits for streams is free by then.
    gpupool.empty_cache()
    assert gpupool.pinned_stats().live_blocks == 0


def test_the_host_has_it_by_the_buffer_protocol():
    buffer = gpupool.empty_pinned(6 * MIB)
    view = memoryview(buffer)
    assert (view.nbytes, view.format, view.readonly, view.ndim) == (6 * MIB, "B", False, 1)
    array = numpy.frombuffer(buffer, numpy.float32)
    array[:] = 1.5
    assert array.ctypes.data == buffer.ptr
    assert bytes(view[:4]) == numpy.float32(1.5).tobytes()
    assert (buffer.nbytes, buffer.ptr % 512) == (6 * MIB, 0)
    assert repr(buffer) == f"gpupool.PinnedBuffer(ptr={buffer.ptr:#x}, nbytes={6 * MIB}, numa=0 (simulated))"


@pytest.mark.parametrize("lend", [memoryview, lambda buffer: numpy.frombuffer(buffer, "u1"), numpy.from_dlpack])
def test_what_is_lent_keeps_the_memory_and_refuses_the_free(lend):
    buffer = gpupool.empty_pinned(MIB)
    lent = lend(buffer)
    with pytest.raises(BufferError, match="in use by"):
        buffer.free()
    assert buffer.nbytes == MIB
    del buffer
    assert gpupool.pinned_stats().live_blocks == 1
    del lent
    assert gpupool.pinned_stats().live_blocks == 0


def test_a_buffer_is_freed_once_and_then_of_no_use():
    buffer = gpupool.empty_pinned(MIB)
    buffer.free()
    assert repr(buffer) == "gpupool.PinnedBuffer(freed)"
    with pytest.raises(gpupool.InvalidValue, match="freed before"):
        buffer.free()
    with pytest.raises(BufferError, match="was freed"):
        memoryview(buffer)
    with pytest.raises(gpupool.InvalidValue, match="was freed"):
        _ = buffer.ptr
    none = gpupool.empty_pinned(0)
    assert (none.ptr, none.nbytes, bytes(none), gpupool.pinned_stats().live_blocks) == (0, 0, b"", 0)
    none.free()


def test_array_libraries_take_it_without_a_copy():
    buffer = gpupool.empty_pinned(4096)
    interface = buffer.__array_interface__
    assert interface["data"] == (buffer.ptr, False)
    assert (interface["shape"], interface["typestr"], interface["version"]) == ((4096,), "|u1", 3)
    # Simulated devices' memory is the CPU's.
    assert buffer.__dlpack_device__() == (1, 0)
    assert numpy.from_dlpack(buffer).ctypes.data == buffer.ptr
    with pytest.raises(BufferError, match="not copied"):
        buffer.__dlpack__(copy=True)


def test_it_is_on_the_node_of_the_device_unless_another_is_named():
    assert gpupool.empty_pinned(1, gpupool.Stream(1)).numa == 1
    assert gpupool.empty_pinned(1).numa == 0
    assert gpupool.empty_pinned(1, numa=1).numa == 1
    with pytest.raises(gpupool.InvalidValue, match="no NUMA node 2"):
        gpupool.empty_pinned(1, numa=2)


def test_freed_memory_waits_for_the_streams_that_were_named():
    streams = [gpupool.Stream(0), gpupool.Stream(1), gpupool.Stream(0)]
    works = [_native.host_submit(stream) for stream in streams]
    buffer = gpupool.empty_pinned(32 * MIB, streams[0])
    address = buffer.ptr
    buffer.record_stream(streams[1])
    buffer.free(streams[2])
    others = []
    for stream, work in zip(streams, works, strict=True):
        others.append(gpupool.empty_pinned(32 * MIB))
        assert others[-1].ptr != address
        _native.host_complete(stream, work)
    assert gpupool.empty_pinned(32 * MIB).ptr == address


def test_warm_memory_is_made_once():
    gpupool.warm_pinned(GIB, background=True)
    wait_until(lambda: gpupool.pinned_stats().cached_bytes == GIB, "it is made")
    gpupool.warm_pinned(GIB // 2)
    assert gpupool.pinned_stats().reserved_bytes == GIB


def test_the_limit_is_named_where_it_is_reached():
    assert gpupool.get_pinned_limit() is None
    gpupool.set_pinned_limit(8 * MIB)
    assert gpupool.get_pinned_limit() == 8 * MIB
    with pytest.raises(gpupool.OutOfMemory) as raised:
        gpupool.empty_pinned(9 * MIB)
    said = str(raised.value)
    assert "out of pinned memory on NUMA node 0 of the host" in said
    assert "set_pinned_limit" in said
    assert (raised.value.device, raised.value.requested_bytes) == (None, 9 * MIB)
    with pytest.raises(gpupool.OutOfMemory):
        gpupool.warm_pinned(9 * MIB)
    gpupool.set_pinned_limit(None)
    assert gpupool.empty_pinned(9 * MIB).nbytes == 9 * MIB


def test_device_memory_and_its_reports_have_none_of_it():
    before = gpupool.memory_stats()
    buffer = gpupool.empty_pinned(3 * MIB)
    assert gpupool.memory_stats() == before
    snapshot = gpupool.memory_snapshot()
    [segment] = snapshot["pinned_segments"]
    assert (segment["numa"], segment["allocated_size"]) == (0, 3 * MIB)
    assert "device" not in segment
    assert all("device" in segment for segment in snapshot["segments"])
    assert buffer.numa == 0


def test_its_events_have_a_trace_of_their_own():
    gpupool.record_memory_history()
    try:
        gpupool.empty_pinned(3 * MIB).free()
        snapshot = gpupool.memory_snapshot()
    finally:
        gpupool.record_memory_history(None)
    actions = [event["action"] for event in snapshot["pinned_trace"] if event["numa"] == 0]
    assert actions == ["segment_map", "alloc", "free_requested", "free_completed", "snapshot"]
    others = [event["action"] for trace in snapshot["device_traces"] for event in trace]
    assert set(others) <= {"snapshot"}


def test_a_use_is_counted_by_node():
    first, second = gpupool.empty_pinned(MIB, numa=0), gpupool.empty_pinned(3 * MIB, numa=1)
    counted = [gpupool.pinned_stats(node).live_bytes for node in (0, 1, None)]
    assert counted == [MIB, 3 * MIB, 4 * MIB]
    del first, second
    gpupool.reset_peak_pinned_stats()
    assert gpupool.pinned_stats().peak_live_bytes == 0


def test_the_summary_has_a_table_of_it():
    buffer = gpupool.empty_pinned(3 * MIB)
    gpupool.set_pinned_limit(64 * MIB)
    summary = gpupool.memory_summary(1)
    node = summary.pinned[0]
    assert (node.numa, node.live_bytes, node.live_blocks) == (0, buffer.nbytes, 1)
    assert (summary.pinned_limit, summary.to_dict()["pinned"][0]["live_bytes"]) == (64 * MIB, 3 * MIB)
    [line] = [line for line in str(summary).splitlines() if line.startswith("NUMA node 0")]
    assert "live 3.00 MiB" in line
    assert str(summary).splitlines()[-1].split("  ")[0] == "limit of all"


def test_the_example_streams_a_data_set_larger_than_the_memory():
    first, *bars, wrong, rates = run_example("stream_data_set")
    assert "0.02 GiB through 0.02 GiB of the GPU's memory" in first
    assert bars[-1].startswith("[" + "#" * 40 + "] 100%")
    assert wrong == "0 wrong words"
    assert "of copies alone" in rates
