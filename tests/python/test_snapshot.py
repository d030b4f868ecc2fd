"""Snapshots have PyTorch's form, key by key, and what reads PyTorch's reads them."""

import os
import pickle
import pickletools
import stat
from concurrent.futures import ThreadPoolExecutor

import gpupool
import pytest
from forks import run_program
from gpupool.__main__ import main
from gpupool._traces import trace as _trace

pytestmark = pytest.mark.usefixtures("nothing_left")

# torch.cuda.memory._snapshot() of PyTorch 2.11 to 2.15, and what gpupool adds: torch/csrc/cuda/Module.cpp.
TOP = {"segments", "device_traces", "allocator_settings", "external_annotations"}
# What gpupool adds.
OWN = {"pinned_segments", "pinned_trace", "handle_events", "holders"}
SEGMENT = {
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "frames",
    "blocks",
}
BLOCK = {"address", "size", "requested_size", "state", "frames"}
ENTRY = {
    "action",
    "addr",
    "size",
    "stream",
    "time_us",
    "compile_context",
    "user_metadata",
    "pool_id",
    "thread",
    "frames",
}
SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF",
    "max_split_size",
    "garbage_collection_threshold",
    "expandable_segments",
    "pinned_num_register_threads",
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "graph_capture_record_stream_reuse",
    "roundup_power2_divisions",
    "allocator",
}
# What the reader of https://pytorch.org/memory_viz knows (torch/utils/viz/MemoryViz.js).
OPCODES = """
APPEND APPENDS BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST FRAME LONG1 LONG_BINGET MARK MEMOIZE PROTO
SETITEMS SHORT_BINUNICODE STOP TUPLE2 NEWFALSE BINPUT BINUNICODE EMPTY_TUPLE NEWTRUE NONE BINFLOAT TUPLE
TUPLE1 TUPLE3 LONG_BINPUT LIST DICT SETITEM
"""


@pytest.fixture
def recorded():
    """Record, and end that after the test."""
    gpupool.record_memory_history()
    yield
    gpupool.record_memory_history(None)


@pytest.fixture
def stream():
    return gpupool.Stream(0)


def blocks_of(snapshot, state):
    return [block for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] == state]


def test_keys_are_pytorch_s(recorded, stream):
    kept = [gpupool.empty(size, stream) for size in (100, 3 << 20)]
    del kept[0]
    snapshot = gpupool.memory_snapshot()
    assert set(snapshot) == TOP | OWN
    assert set(snapshot["allocator_settings"]) == SETTINGS
    assert list(snapshot["allocator_settings"]["roundup_power2_divisions"]) == [str(1 << power) for power in range(16)]
    assert snapshot["external_annotations"] == []
    assert {frozenset(segment) for segment in snapshot["segments"]} == {frozenset(SEGMENT)}
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert {frozenset(block) for block in blocks} == {frozenset(BLOCK)}
    assert len(snapshot["device_traces"]) == gpupool.device_count()
    assert {frozenset(entry) for trace in snapshot["device_traces"] for entry in trace} == {frozenset(ENTRY)}
    frames = [frame for block in blocks for frame in block["frames"]]
    assert {frozenset(frame) for frame in frames} == {frozenset({"name", "filename", "line"})}


def test_sizes_add_up(stream):
    sizes = (100, 513, 70000, 3 << 20)
    kept = [gpupool.empty(size, stream) for size in sizes]
    snapshot = gpupool.memory_snapshot()
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]
        live = [block for block in segment["blocks"] if block["state"] != "inactive"]
        assert segment["active_size"] == sum(block["size"] for block in live) == segment["allocated_size"]
        assert segment["requested_size"] == sum(block["requested_size"] for block in live)
        assert segment["segment_pool_id"] == (0, 0)
        assert segment["segment_type"] == ("small" if segment["total_size"] <= 2 << 20 else "large")
    held = blocks_of(snapshot, "active_allocated")
    assert {(block["address"], block["requested_size"]) for block in held} >= {
        (buffer.ptr, size) for buffer, size in zip(kept, sizes, strict=True)
    }
    stats = gpupool.memory_stats()
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == stats.reserved_bytes


def test_one_device(recorded):
    kept = [gpupool.empty(1 << 20, gpupool.Stream(device)) for device in (0, 1)]
    gpupool.simulated.lease(device=1).release()
    snapshot = gpupool.memory_snapshot(device=1)
    assert {segment["device"] for segment in snapshot["segments"]} == {1}
    assert [bool(trace) for trace in snapshot["device_traces"]] == [False, True]
    assert {event["device"] for event in snapshot["handle_events"]} == {1}
    both = gpupool.memory_snapshot()
    assert {segment["device"] for segment in both["segments"]} == {0, 1}
    assert [bool(trace) for trace in both["device_traces"]] == [True, True]
    assert len(kept) == 2
    with pytest.raises(gpupool.InvalidValue, match="device 7"):
        gpupool.memory_snapshot(device=7)


def test_pools_are_told_apart(recorded, stream):
    pool = gpupool.MemPool(device=0)
    with gpupool.use_mem_pool(pool):
        inside = gpupool.empty(1 << 20, stream)
    snapshot = gpupool.memory_snapshot()
    [entry] = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    assert (entry["addr"], entry["pool_id"]) == (inside.ptr, pool.id)
    assert [segment["segment_pool_id"] for segment in snapshot["segments"]].count(pool.id) == 1
    [segment] = pool.snapshot()
    assert set(segment) == SEGMENT
    assert segment["frames"] == []


def test_nothing_is_touched_by_a_snapshot_of_nothing():
    # A runtime that is not there: whoever asked for it would fail.
    run_program("telling/snapshot_of_nothing.py", GPUPOOL_RUNTIME="cuda")


@pytest.fixture
def dumped(recorded, stream, tmp_path):
    """Return a file with some of everything."""
    buffers = [gpupool.empty(size, stream) for size in (100, 100, 70000, 3 << 20, 300 << 20)]
    del buffers[1:3]
    gpupool.simulated.lease(stream).release()
    path = tmp_path / "snapshot.pickle"
    gpupool.dump_snapshot(path)
    return path


def test_a_dump_is_what_the_viewer_in_the_browser_reads(dumped):
    content = dumped.read_bytes()
    opcodes = list(pickletools.genops(content))
    assert {opcode.name for opcode, _, _ in opcodes} <= set(OPCODES.split())
    assert [argument for opcode, argument, _ in opcodes if opcode.name == "PROTO"] == [4]
    assert len(pickle.loads(content)["device_traces"][0]) >= 10


def test_a_dump_replays(dumped, capsys):
    trace = _trace.read(str(dumped))
    # Five allocations and two frees.
    assert (trace.events, trace.slot_count) == (7, 5)
    assert trace.peak_live == 100 + 100 + 70000 + (3 << 20) + (300 << 20)
    assert main(["replay", str(dumped), "--json"]) == 0
    assert '"events": 7' in capsys.readouterr().out


def test_a_dump_without_history_says_how_to_have_one(tmp_path, stream, capsys):
    kept = gpupool.empty(100, stream)
    gpupool.dump_snapshot(tmp_path / "snapshot")
    assert main(["replay", str(tmp_path / "snapshot")]) == 1
    assert "gpupool.record_memory_history()" in capsys.readouterr().err
    assert kept.nbytes == 100


def test_a_place_that_cannot_be_written_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        gpupool.dump_snapshot(tmp_path / "missing" / "snapshot")


def test_a_file_that_was_there_keeps_its_link_and_its_permissions(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("before")
    real.chmod(0o600)
    link.symlink_to(real)
    gpupool.dump_snapshot(link)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600
    assert isinstance(pickle.loads(real.read_bytes()), dict)
    assert sorted(tmp_path.iterdir()) == [link, real]


def test_what_is_no_file_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as executor:
        content = executor.submit(pipe.read_bytes)
        gpupool.dump_snapshot(pipe)
        assert isinstance(pickle.loads(content.result()), dict)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_dump_at_out_of_memory_shows_what_was_held(recorded, stream, tmp_path):
    """As docs/pictures.md says."""
    path = tmp_path / "oom.pickle"

    def dump(device, nbytes):
        gpupool.dump_snapshot(path, device)
        return False

    callback = gpupool.on_oom(dump)
    pool = gpupool.MemPool(limit=100 << 20, device=0)
    with gpupool.use_mem_pool(pool):
        held = gpupool.empty(60 << 20, stream)
        with pytest.raises(gpupool.OutOfMemory):
            gpupool.empty(50 << 20, stream)
    callback.remove()
    snapshot = pickle.loads(path.read_bytes())
    [oom] = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "oom"]
    assert (oom["size"], oom["pool_id"]) == (50 << 20, pool.id)
    assert oom["device_free"] > 0
    assert "addr" not in oom
    assert oom["frames"][0]["name"] == "test_a_dump_at_out_of_memory_shows_what_was_held"
    assert held.ptr in {block["address"] for block in blocks_of(snapshot, "active_allocated")}
