"""Replay on the GPU: of a log on gpupool's and the driver's allocators, and of a snapshot that PyTorch wrote."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_helpers import import_or_skip
from gpupool._plot import draw
from gpupool._traces import trace as _trace

DATA = Path(__file__).parents[1] / "data"


def replay(*arguments):
    """Return what `gpupool replay --json` prints, line by line."""
    command = [sys.executable, "-m", "gpupool", "replay", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# Those of the driver need more memory than other tests may leave.
ALLOCATORS = ["gpupool", *(pytest.param(name, marks=pytest.mark.alone) for name in ("driver", "async"))]


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.device_memory(gib=7)
def test_a_log_is_replayed_on_each_allocator(allocator):
    (result,) = replay("--allocator", allocator, str(DATA / "two_streams-1.csv.gz"))
    assert result["events"] > 70_000
    assert result["warm_ns"] > 0
    if allocator == "gpupool":
        assert result["peak_live"] <= result["peak_reserved"] <= 1.02 * result["peak_live"]
    print(result)


def test_a_snapshot_that_pytorch_wrote_is_replayed(tmp_path):
    torch = import_or_skip("torch")
    path = tmp_path / "snapshot.pickle"
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    kept = [torch.empty(1 << (10 + step % 14), dtype=torch.uint8, device="cuda") for step in range(500)]
    del kept[::2]
    more = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.memory._dump_snapshot(str(path))
    torch.cuda.memory._record_memory_history(enabled=None)
    del kept, more
    (result,) = replay(str(path))
    assert result["events"] == 500 + 250 + 1
    assert result["peak_live"] >= 64 << 20


@pytest.mark.thorough
@pytest.mark.device_memory(gib=20)
def test_allocators_are_compared_and_drawn(tmp_path):
    pytest.importorskip("vl_convert", reason="needs vl-convert, which renders pictures")
    output = tmp_path / "compared.html"
    rows = replay("--compare", str(DATA / "two_streams-1.csv.gz"), "-o", str(output))
    assert [row["allocator"] for row in rows] == ["gpupool", "driver", "async", "torch", "torch-exp"]
    live = rows[0]["peak_live"]
    # The driver's pool says itself what it has, and that is more than was asked for.
    assert live < rows[2]["peak_reserved"] < 4 * live
    data = re.search(r"^const spec = (.*);$", output.read_text(), re.MULTILINE)
    (chart,) = json.loads(data[1])["vconcat"]
    lines = [layer for layer in chart["layer"] if layer["mark"]["type"] == "line"]
    assert [line["encoding"]["stroke"]["datum"].split(":")[0] for line in lines] == [
        "reserved by gpupool",
        "by the driver (cuMemAlloc)",
        "by the driver's pool (cuMemAllocAsync)",
        "by PyTorch (simulated)",
        "by PyTorch, expandable segments (simulated)",
    ]
    # Table and picture are of one replay, whose peak may have been for a moment within an event.
    peaks = [max(line["data"]["values"][0]["y"]) * (1 << 30) for line in lines]
    assert peaks[0] == pytest.approx(rows[0]["peak_reserved"], rel=0.001)
    assert all(0.98 * live <= peak <= 4 * live for peak in peaks)
    print(rows)


@pytest.mark.device_memory(gib=4)
def test_a_snapshot_of_pytorch_is_drawn_beside_what_it_recorded(tmp_path):
    torch = import_or_skip("torch")
    path = tmp_path / "snapshot.pickle"
    before = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        private = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    kept = [torch.empty(1 << (10 + step % 14), dtype=torch.uint8, device="cuda") for step in range(500)]
    del kept[::2]
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.memory._dump_snapshot(str(path))
    torch.cuda.memory._record_memory_history(enabled=None)
    del before, private, kept
    rows = replay("--compare", str(path))
    assert [row["allocator"] for row in rows] == ["gpupool", "driver", "async", "torch", "torch-exp", "recorded"]
    assert rows[5]["peak_reserved"] >= reserved
    # What was there before the history counts.
    assert rows[0]["peak_live"] >= 70 << 20
    picture = draw.draw(_trace.read_file(str(path)), None)
    memory, addresses = picture.panels
    assert memory.lines[0].y[-1] == reserved
    assert sum(block.size for block in addresses.blocks if block.state != "free") == allocated
    assert sum(is_drawn for _, _, is_drawn in addresses.names) == 2
    assert any("test_replay.py" in frame for stack in addresses.stacks for frame in stack)
