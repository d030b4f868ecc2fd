"""The benches of several devices, as far as they run and compute without a GPU."""

import json
from pathlib import Path

import gpupool
import pytest
from running import start_python, succeeded

BENCHES = Path(__file__).parents[2] / "benches"


@pytest.fixture(autouse=True)
def _benches(monkeypatch):
    monkeypatch.syspath_prepend(BENCHES)


@pytest.mark.parametrize("power", [0.5, 1, 2])
def test_how_times_grow_is_found_beside_what_is_there_anyway(power):
    from devices import exponent, is_linear_at_most

    times = {count: 1000 + 70 * count**power for count in (1, 2, 4, 8, 16)}
    assert exponent(times) == pytest.approx(power, abs=0.02)
    assert is_linear_at_most(times) == (power <= 1)


def test_what_hardly_grows_has_no_power_and_two_counts_have_a_verdict_alone():
    from devices import exponent, is_linear_at_most

    flat = {1: 100.0, 2: 101.0, 4: 99.0, 8: 104.0}
    assert (exponent(flat), is_linear_at_most(flat)) == (0.0, True)
    assert (exponent({1: 100.0, 2: 190.0}), is_linear_at_most({1: 100.0, 2: 190.0})) == (None, True)
    assert is_linear_at_most({1: 100.0, 2: 390.0}) is False
    assert is_linear_at_most({2: 100.0}) is None


def test_each_count_of_devices_is_measured():
    options = ("--counts", "1", "2", "--rounds", "1")
    folders = [Path(gpupool.__file__).parents[1]]
    done = start_python(BENCHES / "devices.py", *options, folders=folders, GPUPOOL_RUNTIME="host")
    rows = [json.loads(line) for line in succeeded(done).splitlines()]
    counts = {}
    for row in rows:
        if "least_us" in row:
            counts.setdefault(row["work"], []).append(row["devices"])
    # One device has no peer.
    assert counts.pop("peers of all") == counts.pop("empty_cache among peers") == [2]
    assert set(map(tuple, counts.values())) == {(1, 2)}
    assert len(counts) == 7


def test_both_ways_of_memory_are_compared_gpu_by_gpu(capsys):
    from two_gpus import EXPANDABLE, GPUPOOL, compare, plan

    def run(held, step, result):
        return {"held_mib": held, "reserved_mib": held, "step_ms": step, "sum_ms": step, "tokens": 7, "result": result}

    expandable = [run([100, 200], step, [2.0, 4.0]) for step in (9, 10, 50)]
    pooled = [run([90, 196], step, [2.0, 4.1]) for step in (8, 9, 9)]
    compare("ddp", {EXPANDABLE: expandable, GPUPOOL: pooled})
    row = json.loads(capsys.readouterr().out)
    assert (row["held"], row["largest_held"], row["step"], row["results_differ_by"]) == ([0.9, 0.98], 0.98, 0.9, 0.025)
    # One GPU of two holds too much.
    assert row["is_within"] is False
    assert [way for _, _, way in plan(["ddp"], 2)] == [EXPANDABLE, GPUPOOL, GPUPOOL, EXPANDABLE]
