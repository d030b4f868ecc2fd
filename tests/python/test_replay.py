"""The command ``gpupool replay``."""

import functools
import json
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import gpupool
import pytest
from forks import start_command
from gpupool import _native
from gpupool.__main__ import main
from gpupool._report import units as _units

DATA = Path(__file__).parents[1] / "data"
TRACES = [str(DATA / "gnn_sampled-1.csv.gz"), str(DATA / "two_streams-1.csv.gz")]
EVENTS = [59559, 73163]
PEAKS = [22632469400, 4843126792]
KEYS = ["trace", "events", "peak_live", "peak_reserved", "ratio", "driver_calls", "moved_pages", "cold_ns", "warm_ns"]


def run(*arguments, **variables):
    return start_command("replay", *arguments, **{"GPUPOOL_HOST_MEMORY": None, **variables})


# These replay on the simulated device.


@functools.cache
def figures(*arguments):
    """Return what a replay tells as JSON, of one that several tests look at."""
    done = run(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("threads", [1, 2])
def test_json(threads):
    lines = figures(*TRACES, "--threads", str(threads))
    assert [line["trace"] for line in lines] == ["gnn_sampled-1.csv.gz", "two_streams-1.csv.gz"]
    assert [line["events"] for line in lines] == EVENTS
    assert [line["peak_live"] for line in lines] == [threads * peak for peak in PEAKS]
    for line in lines:
        assert list(line) == KEYS
        assert line["ratio"] == pytest.approx(line["peak_reserved"] / line["peak_live"], abs=1e-4)
        assert threads > 1 or line["ratio"] >= 1
        assert line["driver_calls"] > 0
        assert line["moved_pages"] >= 0
        assert min(line["cold_ns"], line["warm_ns"]) > 0


@pytest.mark.parametrize(
    ("name", "driver_calls"), [("gnn_sampled-1", 14_000), ("gpt_varlen-1", 18_000), ("two_streams-1", 4000)]
)
def test_little_is_wasted_and_the_driver_called_seldom(name, driver_calls):
    # A gibibyte costs some six hundred driver calls where requests are large, and nine hundred where they are small.
    trace = str(DATA / f"{name}.csv.gz")
    (found,) = figures(trace) if trace not in TRACES else [figures(*TRACES, "--threads", "1")[TRACES.index(trace)]]
    assert found["ratio"] <= 1.01
    assert found["driver_calls"] <= driver_calls


def test_device_that_is_too_small():
    done = run(TRACES[0], GPUPOOL_HOST_MEMORY=str(1 << 30))
    assert done.returncode == 1
    assert done.stderr.startswith("gpupool: out of memory")


def test_gpu_that_lags_behind_is_simulated(trace):
    done = run(trace, "--lag", "30", GPUPOOL_RUNTIME="cuda")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "runtime host (simulated device), allocator gpupool, 1 thread, lag 30"


# These replace the replay itself.


@pytest.fixture
def replayed(monkeypatch):
    """Return the arguments of the replays that were asked for; each gives the same result."""
    calls = []

    def replay(*arguments):
        *packed, watch, _, _ = arguments
        watch(0.5)
        calls.append(tuple(packed))
        return SimpleNamespace(
            peak_reserved=3 << 30, driver_calls=12, moved_pages=34, cold_ns=123.4567, warm_ns=56.7891
        )

    monkeypatch.setattr(_native, "replay", replay, raising=False)
    return calls


@pytest.fixture
def trace(tmp_path):
    """Return the path of a small trace: 2 GiB on two streams."""
    path = tmp_path / "small.csv"
    lines = ["allocate,a,1073741824,0", "allocate,b,1073741824,3", "free,a,0,0"]
    path.write_text("Thread,Time,Action,Pointer,Size,Stream\n" + "".join(f"0,0,{line}\n" for line in lines))
    return str(path)


def test_lines(replayed, trace, capsys):
    assert main(["replay", trace, trace, "--json"]) == 0
    expected = dict(zip(KEYS, ["small.csv", 3, 2 << 30, 3 << 30, 1.5, 12, 34, 123.5, 56.8], strict=True))
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [expected] * 2
    slots = (0).to_bytes(4, "little") + (1).to_bytes(4, "little") + (1 << 31).to_bytes(4, "little")
    sizes = 2 * (1 << 30).to_bytes(8, "little") + bytes(8)
    streams = bytes(4) + (1).to_bytes(4, "little") + bytes(4)
    assert replayed == [(slots, sizes, streams, 2, 1, "gpupool")] * 2


def test_rows(replayed, trace, capsys):
    assert main(["replay", trace, "--threads", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "runtime host (simulated device), allocator gpupool, 2 threads",
        "trace       events  peak live peak reserved  ratio driver calls moved pages  cold ns  warm ns",
        "small.csv        3   4.00 GiB      3.00 GiB  0.750           12          34      123       57",
    ]
    assert replayed[0][3:] == (2, 2, "gpupool")


def test_row_of_a_snapshot_names_its_device(replayed, tmp_path, capsys):
    entry = {"action": "alloc", "addr": 1, "size": 5, "stream": 0}
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[entry], [entry, {**entry, "addr": 2}]]}))
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "  device 1, which has most events of 2 devices"


@pytest.mark.parametrize("allocator", ["driver", "async"])
def test_other_allocators_need_a_gpu(replayed, trace, capsys, monkeypatch, allocator):
    assert main(["replay", trace, "--allocator", allocator]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"gpupool: --allocator {allocator} needs a GPU, and runtime host simulates one: ")
    assert not replayed
    monkeypatch.setattr(gpupool, "runtime", lambda: "cuda")
    assert main(["replay", trace, "--allocator", allocator]) == 0
    assert capsys.readouterr().out.startswith(f"runtime cuda, allocator {allocator}, 1 thread\n")
    assert replayed[0][-1] == allocator


def test_simulated_device_is_large_unless_the_user_says_otherwise(replayed, trace, monkeypatch):
    assert main(["replay", trace, "--json"]) == 0
    assert os.environ["GPUPOOL_HOST_MEMORY"] == str(1500 << 30)
    monkeypatch.setenv("GPUPOOL_HOST_MEMORY", "1000")
    assert main(["replay", trace, "--json"]) == 0
    assert os.environ["GPUPOOL_HOST_MEMORY"] == "1000"


def test_file_that_cannot_be_read(replayed, trace, capsys):
    assert main(["replay", trace, "missing.csv", "--json"]) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["trace"] == "small.csv"
    assert output.err == "gpupool: missing.csv: cannot be read: No such file or directory\n"


def test_replay_that_fails_says_why(replayed, trace, capsys, monkeypatch):
    def fail(*arguments):
        raise gpupool.Error("the device is gone")

    monkeypatch.setattr(_native, "replay", fail, raising=False)
    assert main(["replay", trace, "--json"]) == 1
    assert capsys.readouterr() == ("", "gpupool: the device is gone\n")


@pytest.mark.parametrize("arguments", [[], ["x.csv", "--allocator", "other"]])
def test_wrong_arguments(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["replay", *arguments])
    assert "gpupool" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1 << 10, "1.00 KiB"),
        (20 << 20, "20.0 MiB"),
        (500 << 30, "500 GiB"),
        (1023 << 30, "0.999 TiB"),
        (1 << 63, "8.00 EiB"),
    ],
)
def test_sizes_have_three_digits(nbytes, text):
    assert _units.size(nbytes) == text
