"""Logs that the recorded programs could as well have left: none of them needs much beyond what is live."""

import json
from pathlib import Path

import pytest
from forks import start_command

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
@pytest.mark.parametrize("name", ["gnn_sampled-1", "gpt_varlen-1", "two_streams-1"])
def test_little_is_wasted_on_what_nobody_tuned_for(name, seed, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benches")
    import variants

    path = tmp_path / "variant.csv"
    variants.write_variant(ROOT / "tests" / "data" / f"{name}.csv.gz", f"{name} {seed}", path)
    found = json.loads(start_command("replay", str(path), "--json", GPUPOOL_HOST_MEMORY=None).stdout)
    assert found["ratio"] <= 1.0125, found
