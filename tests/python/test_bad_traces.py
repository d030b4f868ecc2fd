"""Files made to break the readers of traces: a result or one line that says what is wrong, in little memory."""

import gzip
import json
import os
import pickle
import re
from pathlib import Path

import pytest
from forks import start_command, start_program
from gpupool.__main__ import main
from gpupool._plot import output as _output
from gpupool._plot import spec as _spec
from gpupool._traces import bounds as _bounds
from snapshots import block, entry, handle, segment, write
from test_plot import page

HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"
MIB = 1 << 20
# What a pickle of protocol 4 begins and ends with.
PICKLE, END = b"\x80\x04", b"."


def log(path, *lines):
    path.write_text(HEADER + "".join(f"1,{line}\n" for line in lines))
    return str(path)


@pytest.fixture(params=["replay", "plot"])
def run(request, tmp_path, capsys, monkeypatch):
    """Run both commands on a file, in this process; return the exit code and the error.

    What is to be drawn is told, but not rendered, which takes a second.
    """
    monkeypatch.setattr(_output, "render", lambda picture, form: _spec.text(picture, _spec.Use.PAGE).encode())

    def run(path, *options):
        output = ["-o", str(tmp_path / "out.html")] if request.param == "plot" else []
        code = main([request.param, str(path), *output, *options])
        error = capsys.readouterr().err
        assert (code, error) == (0, "") or (code == 1 and re.fullmatch(r"gpupool: [^\n]+\n", error)), (code, error)
        assert "a bug in gpupool" not in error
        return code, error

    return run


# Logs.


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"1,allocate,1,{1 << 64},0", "line 3: neither an allocation nor a free"),
        (f"1,allocate,1,{'9' * 5000},0", "line 3: neither an allocation nor a free"),
        (f"1,allocate,1,7,0x{'f' * 5000}", "line 3: neither an allocation nor a free"),
        (f"1,allocate,1,7,{1 << 64}", "line 3: neither an allocation nor a free"),
        (f"{1 << 63},allocate,1,7,0", "line 3: neither an allocation nor a free"),
        (f"{'9' * 400}:00:00:1,allocate,1,7,0", "line 3: neither an allocation nor a free"),
        (
            f"1,allocate,1,{(1 << 64) - 1},0",
            "line 3: more than 8.00 EiB would be live, which no device has; correct the sizes",
        ),
        (f"1,allocate,1,{'7' * (1 << 16)},0", "line 3: longer than 65536 characters; correct or remove the line"),
        ('1,allocate,1,7,"0', "line 3: neither an allocation nor a free"),
    ],
)
def test_numbers_of_a_log(run, tmp_path, line, reason):
    code, error = run(log(tmp_path / "a.csv", "1,allocate,0,512,0", line))
    assert code == 1
    assert f"{tmp_path}/a.csv: {reason}" in error


def test_pointer_of_any_length(run, tmp_path):
    assert run(log(tmp_path / "a.csv", f"1,allocate,0x{'f' * 5000},512,0")) == (0, "")


def test_times_far_apart(run, tmp_path):
    path = log(tmp_path / "a.csv", "0,allocate,1,512,0", f"{(1 << 62) - 1},free,1,512,0", "5,allocate,1,512,0")
    assert run(path) == (0, "")


def test_more_streams_than_a_device_has(run, tmp_path):
    path = log(tmp_path / "a.csv", *(f"1,allocate,1,1,{stream}" for stream in range((1 << 14) + 1)))
    code, error = run(path)
    assert code == 1
    assert "a.csv: line 16386: more than 16384 streams, too many to make; correct the streams" in error


def test_quotes_that_never_end_take_no_memory(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(HEADER.encode() + b'","\n' * (16 * MIB)))
    done = start_program("command_line/little_memory.py", 64, "replay", path)
    assert (done.returncode, done.stdout.count("\n")) == (1, 2)
    assert done.stderr.startswith(f"gpupool: {path}: line 2: neither an allocation nor a free: '\",\"'; ")


def test_one_line_of_gibibytes_takes_no_memory(tmp_path):
    path = tmp_path / "long.csv.gz"
    with open(path, "wb") as file:
        part = gzip.compress(b"7" * (16 * MIB))
        file.writelines([gzip.compress(HEADER.encode()), *[part] * 192])
    done = start_program("command_line/little_memory.py", 64, "plot", path, "-o", tmp_path / "o.html")
    assert done.returncode == 1
    assert done.stderr == f"gpupool: {path}: line 2: longer than 65536 characters; correct or remove the line\n"


def test_many_events_of_a_small_file(run, tmp_path, monkeypatch):
    monkeypatch.setattr(_bounds, "memory_limit", lambda descriptor: 128_000)
    lines = ["0,allocate,1,1,0"] * 1002
    assert run(log(tmp_path / "a.csv", *lines[:1000])) == (0, "")
    code, error = run(log(tmp_path / "a.csv", *lines))
    assert code == 1
    assert "a.csv: line 1002: reading it would take more than 125 KiB of memory, too much for a file of its" in error


def test_memory_that_a_file_may_take(tmp_path):
    path = tmp_path / "a"
    for nbytes, expected in ((0, 64 * MIB), (MIB, 576 * MIB), (1 << 30, 24 << 30), (1 << 40, (8 << 30) + (16 << 40))):
        path.touch()
        os.truncate(path, nbytes)
        with open(path) as file:
            assert _bounds.memory_limit(file.fileno()) == expected
    # A pipe does not tell how much will come.
    reader, writer = os.pipe()
    assert _bounds.memory_limit(reader) == 8192 * MIB
    os.close(reader)
    os.close(writer)


# Snapshots.


def test_integers_beyond_64_bits(run, tmp_path):
    for number in (1 << 64, -(1 << 63) - 1, 1 << 10_000, 1 << (1 << 20)):
        code, error = run(write(tmp_path / "s", [entry("alloc", number, 512)]))
        assert code == 1
        assert re.search(r"/s: not a PyTorch memory snapshot, .*an integer of more than 64 bits at byte \d+;", error)


@pytest.mark.parametrize("key", ["addr", "size", "stream", "time_us", "device_free"])
@pytest.mark.parametrize("number", [(1 << 64) - 1, 1 << 63, (1 << 63) - 1, 1 << 62, -1, -(1 << 63)])
@pytest.mark.parametrize("action", ["alloc", "free_completed", "segment_alloc", "segment_free", "oom"])
def test_numbers_at_the_edge_of_64_bits(run, tmp_path, key, number, action):
    history = [entry("alloc", 4096, 512), entry(action, 8192, 512), entry("free_completed", 4096, 512, 90)]
    history[1][key] = number
    run(write(tmp_path / "s", history, segments=[segment(0, block(MIB))]))


WRONG = [(1 << 64) - 1, 1 << 63, -1, None, [], [[]], "x", (1 << 63, -5), (1, []), {"name": 1 << 63}]
KEYS = {
    "segment": ("address", "total_size", "stream", "device", "segment_pool_id"),
    "block": ("address", "size", "requested_size", "state", "frames"),
    "handle event": ("time_us", "library", "action", "handle"),
}


@pytest.mark.parametrize(("part", "key"), [(part, key) for part, keys in KEYS.items() for key in keys])
@pytest.mark.parametrize("value", WRONG)
def test_values(run, tmp_path, part, key, value):
    damaged, event = segment(0, block(MIB, "active_allocated", MIB), block(MIB)), handle(60, "cudnn", "create", 2)
    {"segment": damaged, "block": damaged["blocks"][0], "handle event": event}[part][key] = value
    segments, events = [damaged, segment(2 * MIB, block(MIB))], [handle(0, "cudnn", "take", 1), event]
    run(write(tmp_path / "s", [entry("alloc", 4096, 512)], segments=segments, handle_events=events))


@pytest.mark.parametrize("part", [None, 5, "address", ["address"], {"address": 0}])
def test_blocks_that_are_none(run, tmp_path, part):
    damaged = segment(0, block(MIB, "active_allocated", MIB))
    damaged["blocks"] += [part]
    code, error = run(write(tmp_path / "s", [entry("alloc", 4096, 512)], segments=[damaged]))
    assert code == 1
    assert "segments[0]: " in error


@pytest.mark.parametrize("name", ["segments", "device_traces", "handle_events"])
@pytest.mark.parametrize("value", [5, "x", [], [[]], [{}], [None], [5], [["alloc"]], [[{"action": []}]], {"a": 1}])
def test_parts_of_another_kind(run, tmp_path, name, value):
    content = {
        "segments": [segment(0, block(MIB))],
        "device_traces": [[entry("alloc", 0, 512)]],
        "handle_events": [handle(60, "cudnn", "create", 2)],
    }
    path = tmp_path / "s"
    path.write_bytes(pickle.dumps({**content, name: value}))
    run(path)


def test_block_outside_of_its_segment(tmp_path, capsys):
    for output in ("o.html", "o.png"):
        damaged = segment(0, block(1 << 60, "active_allocated", 5), total_size=1)
        path = write(tmp_path / "s", segments=[damaged])
        assert main(["plot", path, "-o", str(tmp_path / output)]) == 1
        reason = "segments[0]: the block at 0 of 1152921504606846976 bytes is not inside the segment at 0 of 1 bytes, "
        assert reason in capsys.readouterr().err


def test_block_that_is_in_a_segment_twice(run, tmp_path):
    twice = segment(0, block(MIB, "active_allocated", 5), block(MIB))
    for number in (0, 1):
        damaged = {**twice, "blocks": [twice["blocks"][number]] * 2}
        code, error = run(write(tmp_path / "s", [entry("alloc", 4096, 512)], segments=[damaged]))
        assert code == 1
        assert "behind the block before" in error


def test_segments_of_more_than_all_memory(tmp_path, capsys):
    huge = segment(0, block(1 << 62))
    path = write(tmp_path / "s", segments=[huge, {**huge, "blocks": []}, {**huge, "blocks": []}])
    assert main(["plot", path, "-o", str(tmp_path / "o.html")]) == 1
    assert "segments: more than 9223372036854775807 bytes together, which no device has" in capsys.readouterr().err


def test_segment_without_a_byte(tmp_path, capsys):
    path = write(tmp_path / "s", segments=[segment(0, total_size=0), segment(MIB, block(MIB))])
    assert main(["plot", path, "-o", str(tmp_path / "o.png")]) == 0
    path = write(tmp_path / "s", segments=[segment(0, total_size=0)])
    assert main(["plot", path, "-o", str(tmp_path / "o.png")]) == 1
    assert "an empty snapshot" in capsys.readouterr().err


def test_surrogates(run, tmp_path):
    lone = "lone \udcff\ud800"
    frames = [{"filename": lone, "line": 1, "name": lone}]
    segments = [segment(0, block(MIB, "active_allocated", MIB, frames=frames), segment_type=lone)]
    events = [handle(60, lone, "create", 2), handle(60, "a", lone, 2)]
    path = write(tmp_path / "s", [entry("alloc", 0, 512, frames=frames)], segments=segments, handle_events=events)
    assert run(path) == (0, "")


def test_surrogates_in_a_picture(tmp_path):
    lone = "lone \udcff\ud800"
    path = write(tmp_path / "s", handle_events=[handle(60, lone, "create", 2)])
    assert main(["plot", path, "-o", str(tmp_path / "o.svg")]) == 0
    assert "created: peak 1" in (tmp_path / "o.svg").read_text()


def test_devices_that_are_too_many_to_name(run, tmp_path):
    segments = [segment(0, block(MIB), device=number) for number in range(1000)]
    path = write(tmp_path / "s", [entry("alloc", 0, 512)], segments=segments)
    assert run(path) == (0, "")


def test_long_texts_and_many_libraries_make_a_small_page(tmp_path):
    frames = [{"filename": "f" * MIB, "line": 1, "name": "n" * MIB}] * 24
    history = [entry("alloc", number * 512, 512, frames=[*frames]) for number in range(100)]
    events = [handle(number, f"{number}" + "x" * 1000, "create", number) for number in range(1000)]
    path = write(tmp_path / "s", history, handle_events=events)
    output = tmp_path / "o.html"
    assert main(["plot", path, "-o", str(output)]) == 0
    assert len(json.dumps(page(output))) < 500_000


def refused(tmp_path, content, mebibytes=96):
    path = tmp_path / "s"
    path.write_bytes(content)
    done = start_program("command_line/little_memory.py", mebibytes, "plot", path, "-o", tmp_path / "o.html")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    start = f"gpupool: {path}: not a PyTorch memory snapshot, or a damaged one: "
    assert done.stderr.startswith(start), done.stderr
    return done.stderr.removeprefix(start)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (b"Nr\x00\x00\x00\x10", "memo entry 268435456, though no file has more entries than bytes, at byte 3"),
        (b"Nj\x00\x00\x00\x10", "no memo entry 268435456 at byte 3"),
        (b"X\xff\xff\xff\x7fab", "a text of 2147483647 bytes, more than 1048576, at byte 2"),
        (b"X\xff\xff\x0f\x00ab", "cut off at byte"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fab", "a text of 9223372036854775807 bytes"),
        (b"B\xff\xff\xff\x7fab", "a text of"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\xffab", "a text of"),
        (b"\x8b\xff\xff\xff\x7fab", "an integer of more than 64 bits at byte"),
        (b"\x8b\xff\xff\xff\xffab", "an integer of more than 64 bits at byte"),
        (
            b"\x96\xff\xff\xff\x7f\x00\x00\x00\x00",
            "opcode 0x96, which no snapshot has and which could run code, at byte 2",
        ),
        (b"\x95\xff\xff\xff\xff\xff\xff\xff\xff", "cut off at byte"),
        (b"I123\n", "opcode 0x49, which"),
        (b"c" + b"x" * 100_000, "it names x"),
        (b"\x8c\x05\x1b[31m\x8c\x01\n\x93", r"it names \u{1b}[31m.\n, which could run code"),
        (b"(" * 100_000, "values nested deeper than 1000 at byte"),
        (b"a", "no value to take at byte 2"),
        (b"]u", "no mark at byte 3"),
        (b"NNa", "no list to append to at byte 4"),
        (b"](KKs", "no value to take at byte"),
        (b"}NNs", "a key that is neither text nor an integer at byte"),
        (b"}))s", "a key that is neither text nor an integer at byte"),
        (b"}(K\x01u", "a key without a value at byte"),
    ],
)
def test_opcodes(tmp_path, code, reason):
    assert refused(tmp_path, PICKLE + code + (b"" if "cut off" in reason else END)).startswith(reason)


def test_many_values_of_a_small_file(tmp_path):
    path = tmp_path / "s"
    path.write_bytes(gzip.compress(PICKLE + b"}" * (2 * MIB)))
    done = start_program("command_line/little_memory.py", 256, "plot", path, "-o", tmp_path / "o.html")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert re.match(rf"gpupool: {path}: reading it would take more than 65\.0 MiB of memory, .*gunzip", done.stderr)


def snapshot_of(entry):
    """Return a pickle of a snapshot with one entry in its trace, whose items are given as opcodes."""
    return PICKLE + b"}\x8c\x0ddevice_traces]]}(" + entry + b"uaas" + END


def test_values_nested_too_deep_for_recursion(tmp_path):
    for code in (b"]" * 200_000 + b"a" * 199_999, b")" + b"\x85" * 200_000, b"}" + b"K\x01}" * 99 + b"s" * 99):
        assert refused(tmp_path, snapshot_of(b"\x8c\x06action" + code)).startswith("device_traces[0][0]: action ")


def test_values_that_double_at_each_level(tmp_path):
    # At the end 2**60 elements, for all that would print them or hash them.
    for empty, pair in ((b"]", b"](h\x00h\x00e"), (b")", b"h\x00h\x00\x86")):
        code = empty + b"q\x00" + (b"0" + pair + b"q\x00") * 60
        for key in (b"action", b"addr", b"size", b"stream"):
            entry = b"\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x01\x8c\x06streamK\x00"
            entry += b"\x8c" + bytes([len(key)]) + key + code
            assert refused(tmp_path, snapshot_of(entry)).startswith("device_traces[0][0]: ")
        content = PICKLE + b"}" + code + b"K\x00s" + END
        assert refused(tmp_path, content).startswith("a key that is neither text nor an integer")


def test_segments_that_share_their_blocks(tmp_path):
    blocks = [block(1, "active_allocated", 1) for _ in range(5000)]
    shared = segment(0, *blocks)
    path = write(tmp_path / "s", segments=[{**shared} for _ in range(5000)])
    done = start_program("command_line/little_memory.py", 96, "plot", path, "-o", tmp_path / "o.html")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "reading it would take more than 223 MiB of memory, too much for a file of its size" in done.stderr


# Names.


@pytest.mark.parametrize("name", [b"caf\xe9.csv", b"two\nlines.csv", b"esc\x1b[2J.csv", "Zo\u00eb.csv".encode()])
def test_names_of_files(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = os.fsdecode(name)
    log(Path(path), "1,allocate,0,512,0")
    assert run(path) == (0, "")
    log(Path(path), "1,allocate,0,many,0")
    code, error = run(path)
    assert code == 1
    assert "line 2" in error


def test_name_that_is_not_utf8_in_another_process(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.csv")
    log(Path(path), "1,allocate,0,512,0")
    for variables in ({}, {"PYTHONIOENCODING": "ascii"}):
        done = start_command("replay", path, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        assert r"caf\udce9.csv" in done.stdout
        done = start_command("plot", path, "-o", f"{path}.html", **variables)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith("caf\\udce9.csv.html\n")
