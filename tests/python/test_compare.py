"""The command ``gpupool replay --compare``, its pictures, and what a replay tells as it goes."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gpupool
import pytest
from forks import start_command
from gpupool import _native
from gpupool.__main__ import main
from gpupool._report import units as _units
from gpupool._traces import trace as _trace
from gpupool._traces.bounds import MAX_LAG
from running import PROGRAMS
from snapshots import block, entry, segment, write
from test_plot import layers, legend, lines_of, page, rows_of

DATA = Path(__file__).parents[1] / "data"
LOG = str(DATA / "two_streams-1.csv.gz")
MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def snapshot(tmp_path):
    """Write a snapshot: PyTorch reserved 20 MiB for 3 MiB, then 40 MiB for 6, and gave 20 back."""
    history = [
        entry("segment_alloc", 32 * MIB, 20 * MIB),
        entry("alloc", 32 * MIB, 3 * MIB, 1),
        entry("segment_map", 64 * MIB, 20 * MIB, 2),
        entry("alloc", 64 * MIB, 3 * MIB, 3),
        entry("free_completed", 64 * MIB, 3 * MIB, 4),
        entry("segment_unmap", 64 * MIB, 20 * MIB, 5),
        entry("free_completed", 32 * MIB, 3 * MIB, 6),
        entry("alloc", 32 * MIB, 1 * MIB, 7),
    ]
    kept = segment(32 * MIB, block(MIB, "active_allocated", MIB), block(19 * MIB))
    return write(tmp_path / "torch.pickle", history, segments=[kept])


def test_table(snapshot, capsys):
    assert main(["replay", "--compare", snapshot]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert " ".join(lines[0]) == "runtime host (simulated device), allocators compared, 1 thread"
    assert " ".join(lines[1]) == "the driver's own allocators need a GPU, and are left out"
    assert lines[2][:3] == ["torch", "and", "torch-exp:"]
    assert lines[2][-4:] == ["simulated", "by", "its", "rules"]
    assert lines[3][:3] == ["trace", "allocator", "events"]
    assert lines[4][:5] == ["torch.pickle", "gpupool", "5", "6.00", "MiB"]
    # PyTorch takes 20 MiB for requests of 1 to 10 MiB, and 2 MiB for those of up to 1 MiB.
    for line, name, figures in zip(
        lines[5:], ["torch", "torch-exp", "recorded"], ["22.0 3.667", "22.0 3.667", "40.0 6.667"], strict=True
    ):
        reserved, ratio = figures.split()
        unknown = ["-"] * 4
        assert line == ["torch.pickle", name, "5", "6.00", "MiB", reserved, "MiB", ratio, *unknown]


def test_json(snapshot, capsys):
    assert main(["replay", "--compare", "--json", snapshot, LOG]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    # A log does not tell what was reserved when it was recorded.
    assert [(line["trace"], line["allocator"]) for line in lines] == [
        ("torch.pickle", "gpupool"),
        ("torch.pickle", "torch"),
        ("torch.pickle", "torch-exp"),
        ("torch.pickle", "recorded"),
        ("two_streams-1.csv.gz", "gpupool"),
        ("two_streams-1.csv.gz", "torch"),
        ("two_streams-1.csv.gz", "torch-exp"),
    ]
    assert lines[3]["peak_reserved"] == 40 * MIB
    assert lines[3]["cold_ns"] is lines[3]["driver_calls"] is None
    assert lines[0]["cold_ns"] > 0


def test_picture(snapshot, tmp_path, capsys):
    output = tmp_path / "out.html"
    assert main(["replay", "--compare", snapshot, LOG, "-o", str(output)]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {output}\n")
    first, second = page(output)["vconcat"]
    assert [first["title"]["text"], second["title"]["text"]] == ["torch.pickle", "two_streams-1.csv.gz"]
    assert legend(first, "fill") == ["live: peak 6.00 MiB"]
    # The value of the last point holds until the end.
    assert [row["top0"] for row in rows_of(first)] == [3, 6, 3, 0, 1, 1]
    lines = lines_of(first)
    ours, torch, expandable, recorded = lines
    assert ours.startswith("reserved by gpupool: peak ")
    # PyTorch takes 20 MiB for requests of 1 to 10 MiB, and 2 MiB for those of up to 1 MiB.
    assert torch == "by PyTorch (simulated): peak 22.0 MiB, ratio 3.667"
    assert lines[torch] == [(0, 20), (6, 22), (6, 22)]
    assert expandable == "by PyTorch, expandable segments (simulated): peak 22.0 MiB, ratio 3.667"
    assert recorded == "as recorded: peak 40.0 MiB, ratio 6.667"
    assert lines[recorded] == [(0, 20), (2, 40), (5, 20), (6, 20)]
    assert [line.split(":")[0] for line in lines_of(second)] == [
        "reserved by gpupool",
        "by PyTorch (simulated)",
        "by PyTorch, expandable segments (simulated)",
    ]
    # Each has its own axis.
    assert [zoom["views"] for zoom in page(output)["params"]] == [["panel0"], ["panel1"]]
    assert max(y for _, y in next(iter(lines_of(second).values()))) * GIB >= 4843126792


def test_one_replay_is_enough_for_the_table_and_all_pictures(tmp_path, monkeypatch, capsys):
    replays = []

    def replay(*arguments):
        replays.append(arguments)
        return original(*arguments)

    original = _native.replay
    monkeypatch.setattr(_native, "replay", replay)
    monkeypatch.delattr(_native, "replay_reserved")
    outputs = [tmp_path / "out.html", tmp_path / "out.png"]
    assert main(["replay", "--json", LOG, "-o", str(outputs[0]), "-o", str(outputs[1])]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(replays) == 1
    # What is drawn is what the table says.
    ((_, line),) = lines_of(page(outputs[0])["vconcat"][0]).items()
    assert max(y for _, y in line) == round(row["peak_reserved"] / GIB, 6)
    assert outputs[1].read_bytes().startswith(b"\x89PNG")


def test_every_allocator_of_a_gpu(snapshot, tmp_path, monkeypatch, capsys):
    asked = []

    def replay(*arguments):
        asked.append(arguments[5])
        changes = [(0, 5 * MIB), (2, 8 * MIB)]
        return SimpleNamespace(
            peak_reserved=8 * MIB, driver_calls=1, moved_pages=0, cold_ns=1.0, warm_ns=1.0, reserved=changes
        )

    monkeypatch.setattr(_native, "replay", replay)
    monkeypatch.setattr(gpupool, "runtime", lambda: "cuda")
    output = tmp_path / "out.html"
    assert main(["replay", "--compare", snapshot, "-o", str(output)]) == 0
    table = capsys.readouterr().out
    assert "left out" not in table
    told = [line.split()[1] for line in table.splitlines()[3:-1]]
    assert told == ["gpupool", "driver", "async", "torch", "torch-exp", "recorded"]
    assert asked == ["gpupool", "driver", "async"]
    chart = page(output)["vconcat"][0]
    assert [line.split(":")[0] for line in lines_of(chart)] == [
        "reserved by gpupool",
        "by the driver (cuMemAlloc)",
        "by the driver's pool (cuMemAllocAsync)",
        "by PyTorch (simulated)",
        "by PyTorch, expandable segments (simulated)",
        "as recorded",
    ]
    # Told apart without colours too.
    encoding = layers(chart, "line")[0]["encoding"]
    assert len(set(map(str, encoding["strokeDash"]["scale"]["range"]))) == 6
    assert len(set(encoding["stroke"]["scale"]["range"])) == 6


@pytest.fixture
def pieces(tmp_path):
    """Write a log: 24 blocks of 3 MiB, every second one freed, then one of 12 MiB; at most 72 MiB are live."""
    lines = [f"allocate,{number},{3 * MIB},0" for number in range(1, 25)]
    lines += [f"free,{number},{3 * MIB},0" for number in range(1, 25, 2)]
    lines.append(f"allocate,100,{12 * MIB},0")
    path = tmp_path / "pieces.csv"
    path.write_text("Action,Pointer,Size,Stream\n" + "".join(f"{line}\n" for line in lines))
    return str(path)


def test_what_does_not_fit_on_a_device(pieces, tmp_path):
    output = tmp_path / "out.html"
    done = start_command("replay", "--compare", "--memory", "86 MiB", pieces, "-o", str(output))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "runtime host (simulated device of 86.0 MiB), allocators compared, 1 thread"
    # Six blocks fit into each segment of 20 MiB, and no segment has 12 MiB free in one piece.
    assert " ".join(" ".join(lines[6:8]).split()) == (
        "torch ran out of memory at event 36: 12.0 MiB asked for, 36.0 MiB in use, "
        "44.0 MiB reserved and free, in pieces of at most 3.00 MiB, 6.00 MiB not reserved"
    )
    assert "ran out" not in "".join(lines[:6])
    (chart,) = page(output)["vconcat"]
    ours, torch, _ = lines_of(chart)
    assert torch == "by PyTorch (simulated): peak 80.0 MiB, ratio 1.111, out of memory"
    # It ends there.
    assert lines_of(chart)[torch][-2] == (36, 0)
    assert layers(chart, "rule")[0]["data"]["values"][0] == {"x": 36, "told": "out of memory: by PyTorch (simulated)"}
    assert "out of memory" not in ours


def test_a_device_that_is_too_small_for_all(pieces):
    done = start_command("replay", "--compare", "--json", "--memory", "40MiB", pieces)
    assert (done.returncode, done.stderr) == (0, "")
    ours, torch, expandable = map(json.loads, done.stdout.splitlines())
    assert (ours["peak_reserved"], ours["ratio"]) == (None, None)
    assert ours["out_of_memory"].startswith("tried to allocate 3.0 MiB")
    # PyTorch's has 12 blocks in two segments of 20 MiB, and no third.
    assert (torch["fails_at"], torch["peak_reserved"]) == (12, 40 * MIB)
    assert torch["out_of_memory"].startswith("at event 12: 3.00 MiB asked for, 36.0 MiB in use, 4.00 MiB reserved")
    assert expandable["fails_at"] == 13
    assert (ours["fails_at"], "changes" in torch) == (None, False)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("22GiB", 22 << 30),
        ("1.5 GiB", 3 << 29),
        ("24G", 24 << 30),
        ("24 GB", 24 * 10**9),
        ("512", 512),
        ("8kB", 8000),
        ("2g", 2 << 30),
    ],
)
def test_sizes_as_people_write_them(text, nbytes):
    assert _units.parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "much", "-1", "1e9", "0", "5000TiB"])
def test_sizes_that_are_none(text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["replay", LOG, "--memory", text])
    assert f"argument --memory: {text!r} is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare", "--allocator", "async"], "--compare takes every allocator; leave --allocator out"),
        (["-o", "x.html", "--threads", "2"], "a picture shows one thread; leave --threads out"),
        (
            ["--memory", "1GiB", "--allocator", "driver"],
            "--memory simulates a device, which has gpupool's allocator alone; leave --allocator out",
        ),
        (
            ["--lag", "30", "--allocator", "async"],
            "--lag simulates a device, which has gpupool's allocator alone; leave --allocator out",
        ),
        (["--lag", "-1"], f"argument --lag: '-1' is not from 0 to {MAX_LAG}"),
        (["--lag", str(10**30)], f"argument --lag: '{10**30}' is not from 0 to {MAX_LAG}"),
    ],
)
def test_options_that_do_not_go_together(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["replay", LOG, *arguments])
    assert message in capsys.readouterr().err


def test_output_is_checked_before_the_work(capsys):
    assert main(["replay", LOG, "-o", "x.gif"]) == 1
    assert capsys.readouterr() == ("", "gpupool: x.gif: a picture is a .html, .png or .svg file; name it so\n")


def test_what_was_there_before_the_history_counts(tmp_path):
    history = [entry("free_completed", MIB, 5 * MIB, 1), entry("alloc", MIB, MIB, 2)]
    segments = [
        segment(MIB, block(MIB, "active_allocated", MIB), block(4 * MIB)),
        segment(64 * MIB, block(2 * MIB, "active_allocated", 2 * MIB)),
    ]
    trace = _trace.read(write(tmp_path / "s", history, segments=segments))
    assert (trace.events, trace.peak_live) == (4, 7 * MIB)
    assert set(trace.reserved) == {7 * MIB}


def test_requests_for_nothing_are_left_out(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("Action,Pointer,Size,Stream\nallocate,(nil),0,0\nallocate,16,512,0\nfree,(nil),0,0\n")
    assert _trace.read(str(path)).events == 1
    assert main(["replay", str(path)]) == 0


# The replay itself.


def packed(events, streams=None):
    slots = b"".join(slot.to_bytes(4, "little") for slot, _ in events)
    sizes = b"".join(size.to_bytes(8, "little") for _, size in events)
    streams = b"".join(stream.to_bytes(4, "little") for stream in streams or [0] * len(events))
    return slots, sizes, streams, 1 + max(slot & ~_trace.FREE for slot, _ in events)


def test_reserved_over_events():
    events = [(0, 40 * MIB), (1, 60 * MIB), (0 | _trace.FREE, 0), (2, 40 * MIB), (1 | _trace.FREE, 0)]
    reserved = _native.replay_reserved(*packed(events), 100, "gpupool")
    assert reserved[0] == (0, 40 * MIB)
    assert dict(reserved)[1] == 100 * MIB
    assert _native.replay(*packed(events), 1, "gpupool", None, 100).reserved == reserved
    assert _native.replay(*packed(events), 1, "gpupool").reserved == []
    with pytest.raises(gpupool.InvalidValue, match="of a replay on one thread"):
        _native.replay(*packed(events), 2, "gpupool", None, 100)
    # What was freed is used again.
    assert max(nbytes for _, nbytes in reserved) == 100 * MIB
    assert gpupool.memory_stats().live_blocks == 0


@pytest.mark.parametrize(("lag", "most"), [(0, 40 * MIB), (1, 80 * MIB), (4, 120 * MIB), (16, 320 * MIB)])
def test_streams_take_turns_unless_they_are_at_work(lag, most):
    # Eight streams, three times one after the other; each has a block of 40 MiB, whose two events are work on it.
    turns = range(3 * 8)
    events = [event for slot in turns for event in ((slot, 40 * MIB), (slot | _trace.FREE, 0))]
    streams = [turn % 8 for turn in turns for _ in range(2)]
    for changes in (0, 100):
        result = _native.replay(*packed(events, streams), 1, "gpupool", None, changes, lag)
        assert result.peak_reserved == most
        assert max((nbytes for _, nbytes in result.reserved), default=most) == most
        # No work is left, which would have some of it.
        gpupool.empty_cache()
        assert gpupool.memory_stats().reserved_bytes == 0


def test_no_work_of_several_threads_is_left():
    events = [event for slot in range(100) for event in ((slot, 512), (slot | _trace.FREE, 0))]
    assert _native.replay(*packed(events, [1, 1, 0, 0] * 50), 4, "gpupool", None, 0, 7).peak_reserved > 0
    gpupool.empty_cache()
    assert gpupool.memory_stats().reserved_bytes == 0


@pytest.fixture
def long_replay():
    """Return a replay that takes longer than anybody waits for, unless it is stopped."""
    events = [event for slot in range(200_000) for event in ((slot, 512), (slot | _trace.FREE, 0))]
    arguments = packed(events)
    yield lambda watch: _native.replay(*arguments, 16, "gpupool", watch)
    assert gpupool.memory_stats().live_blocks == 0


def test_replay_is_stopped_by_what_its_watcher_raises(long_replay):
    parts = []

    def watch(part):
        parts.append(part)
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        long_replay(watch)
    assert len(parts) == 1
    assert 0 <= parts[0] < 1


def test_replay_is_stopped_by_signals(long_replay):
    def interrupt(*arguments):
        raise LookupError("interrupted")

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(LookupError, match="interrupted"):
            long_replay(None)
    finally:
        signal.signal(signal.SIGALRM, former)


def test_replay_that_fails_frees_its_blocks():
    with pytest.raises(gpupool.OutOfMemory):
        _native.replay(*packed([(0, MIB), (1, 1 << 60)]), 2, "gpupool")
    with pytest.raises(gpupool.OutOfMemory):
        _native.replay_reserved(*packed([(0, MIB), (1, 1 << 60)]), 100, "gpupool")
    assert gpupool.memory_stats().live_blocks == 0


# In front of a person.


def test_ctrl_c_ends_a_replay():
    seen, terminal = pty.openpty()
    program = PROGRAMS / "command_line" / "eager_progress.py"
    command = [sys.executable, str(program), "replay", LOG, "--threads", "16"]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal, env=environment) as running:
        os.close(terminal)
        shown = b""
        while b"replaying two_streams-1.csv.gz with gpupool [" not in shown:
            shown += os.read(seen, 1 << 16)
        running.send_signal(signal.SIGINT)
        # The terminal ends with the last process that has it.
        with contextlib.suppress(OSError):
            while some := os.read(seen, 1 << 16):
                shown += some
    os.close(seen)
    assert running.returncode == 130
    assert b"Traceback" not in shown
    # The bar is gone.
    assert shown.endswith(b"\r\x1b[K")


def test_interrupted_command(monkeypatch, capsys):
    def interrupt(*arguments):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(_trace, "read", interrupt)
    assert main(["replay", LOG, "--json"]) == 130
    assert capsys.readouterr().err == ""
