"""PyTorch's own tools read gpupool's snapshots, also those of PyTorch's tensors in gpupool's memory."""

import pickle

import gpupool
import pytest
from gpu_helpers import import_or_skip, run_prepared_program

MIB = 1 << 20


@pytest.fixture
def viz():
    import_or_skip("torch")
    return pytest.importorskip("torch.cuda._memory_viz")


@pytest.fixture
def recorded():
    gpupool.empty_cache()
    gpupool.record_memory_history()
    yield
    gpupool.record_memory_history(None)


def test_pytorch_s_tools_read_a_snapshot(viz, recorded, tmp_path):
    streams = [gpupool.Stream(), gpupool.Stream()]
    before = gpupool.memory_snapshot()
    kept = [gpupool.empty(size * MIB, streams[size % 2]) for size in range(1, 40)]
    del kept[::2]
    large = gpupool.empty(300 * MIB, streams[0])
    gpupool.dump_snapshot(tmp_path / "snapshot.pickle")
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    # Both check that the sizes add up.
    assert "total_reserved" in viz.segsum(snapshot)
    assert "TOTAL MEM" in viz.trace(snapshot)
    for flames in (viz.segments(snapshot, str), viz.memory(snapshot, str)):
        assert "test_snapshot.py" in flames
        assert "test_pytorch_s_tools_read_a_snapshot" in flames
    assert "only_after" in viz.compare(before["segments"], snapshot["segments"], str)
    for page in (viz.trace_plot(snapshot), viz.trace_plot(snapshot, plot_segments=True), viz.segment_plot(snapshot)):
        assert "MemoryViz.js" in page
        assert len(page) > 1000
    assert large.nbytes == 300 * MIB


@pytest.mark.thorough
def test_keys_are_those_of_this_pytorch():
    import_or_skip("torch")
    run_prepared_program("telling/snapshot_keys.py")


@pytest.mark.usefixtures("viz")
def test_tensors_in_our_memory_show():
    run_prepared_program("telling/snapshot_of_tensors.py")
