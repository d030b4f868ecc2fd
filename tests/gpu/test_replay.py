"""Replay on the GPU: of a log on gpupool's and the driver's allocators, and of a snapshot that PyTorch wrote."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_helpers import import_or_skip

DATA = Path(__file__).parents[1] / "data"


def replay(*arguments):
    """Return what `gpupool replay --json` prints, line by line."""
    command = [sys.executable, "-m", "gpupool", "replay", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("allocator", ["gpupool", "driver", "async"])
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
