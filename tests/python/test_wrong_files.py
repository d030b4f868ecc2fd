"""Files that people have and take for trace files, whole and cut: what each is, and which one to take."""

import gzip
import io
import json
import os
import pickle
import random
import re
import tracemalloc
import zlib

import gpupool
import pytest
from gpupool import _native
from gpupool.__main__ import main
from gpupool._traces import trace as _trace
from snapshots import FRAMES, block, entry, segment

MIB = 1 << 20
HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"
LINES = [
    f"1,{number},{action},{pointer},{size},{stream}\n"
    for number, (action, pointer, size, stream) in enumerate(
        [("allocate", "0x100", 3 * MIB, "0x10"), ("allocate", "0x900", 777, "0"), ("free", "0x100", 3 * MIB, "0x10")]
    )
]
LOG = (HEADER + "".join(LINES)).encode()
SNAPSHOT = pickle.dumps(
    {
        "segments": [segment(0, block(MIB, "active_allocated", 1000), block(MIB))],
        "device_traces": [[entry("alloc", 0, 1000, frames=FRAMES)]],
    }
)
TAKE = "; take a memory snapshot, which gpupool run --snapshot FILE, "


def packed(content):
    return gzip.compress(content, mtime=0)


@pytest.fixture(params=["replay", "plot"])
def run(request, tmp_path, monkeypatch, capsys):
    """Run both commands in this process; return the exit code, and what was said on standard error."""
    monkeypatch.chdir(tmp_path)

    def run(path, *options):
        code = main([request.param, str(path), *options])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "an empty file"),
        (b"\n \n", "an empty file"),
        (packed(b""), "an empty file"),
        (packed(LOG)[:5], "packed with gzip, and cut off at its start"),
        (packed(LOG)[:10], "packed with gzip, and cut off at its start"),
        (packed(HEADER.encode())[:30], "cut off in line 1"),
        (json.dumps({"segments": [], "device_traces": []}).encode(), "JSON"),
        (b"\xef\xbb\xbf\n[1, 2]", "JSON"),
        (json.dumps({"schemaVersion": 1, "traceEvents": []}).encode(), "a Chrome trace, as torch.profiler writes"),
        (json.dumps([{"ph": "X", "name": "step", "ts": 1}]).encode(), "a Chrome trace, as torch.profiler writes"),
        (packed(b'{\n "traceEvents": ['), "a Chrome trace, as torch.profiler writes"),
        (b"<!DOCTYPE html>\n<html>", "HTML or XML, such as a page of a viewer"),
        (b'<?xml version="1.0"?>', "HTML or XML, such as a page of a viewer"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG picture"),
        (b"%PDF-1.7", "a PDF document"),
        (b"PK\x03\x04\0\0", "a ZIP archive, as torch.save() writes"),
        (b"SQLite format 3\0", "an SQLite database, as Nsight Systems exports"),
        (b"\x7fELF\x02\x01", "a program or a library"),
        (packed(packed(LOG)), "packed with gzip twice (unpack it once with gunzip)"),
        (b"BZh91AY&SY", "packed with bzip2 (unpack it with bunzip2)"),
        (b"\xfd7zXZ\0", "packed with xz (unpack it with unxz)"),
        (b"\x28\xb5\x2f\xfd\x04", "packed with zstd (unpack it with unzstd)"),
        (b"\0\1\2\3", "a binary file"),
        (b"Thread,Time,Action,Pointer,Size\n", "line 1: no column Stream"),
        (b"Dear diary,\n", "line 1: no column Action"),
        (b"\x1f", "line 1: no column Action"),
    ],
)
def test_what_a_file_is_and_which_to_take(run, tmp_path, content, what):
    path = tmp_path / "file"
    path.write_bytes(content)
    code, error = run(path)
    assert code == 1
    assert re.fullmatch(re.escape(f"gpupool: {path}: {what}{TAKE}") + r"[^\n]+\n", error), error


def test_a_folder_is_no_file(run, tmp_path):
    code, error = run(tmp_path)
    assert code == 1
    assert error.startswith(f"gpupool: {tmp_path}: a folder{TAKE}")
    with pytest.raises(gpupool.Error, match=re.escape(f"{tmp_path}: a folder{TAKE}")):
        gpupool.plot(tmp_path)


def test_a_list_of_segments_is_a_snapshot(tmp_path):
    path = tmp_path / "list.pickle"
    path.write_bytes(pickle.dumps([segment(4096, block(MIB, "active_allocated", 1000))]))
    assert main(["plot", str(path), "-o", str(tmp_path / "o.html")]) == 0
    found = _trace.read_file(str(path))
    assert [(each.address, each.size) for each in found.segments] == [(4096, MIB)]
    with pytest.raises(_trace.TraceError, match="a snapshot without a trace: call"):
        _trace.read(str(path))


# Files that were cut.


def read(tmp_path, content):
    """Return the trace of a file and the message of its error, of which one is None."""
    path = tmp_path / "cut"
    path.write_bytes(content)
    try:
        return _trace.read(str(path)), None
    except _trace.TraceError as error:
        message = str(error)
        assert message.startswith(f"{path}: ")
        return None, message


def test_a_log_is_read_up_to_where_it_was_cut(tmp_path):
    for end in range(len(LOG) + 1):
        trace, message = read(tmp_path, LOG[:end])
        whole, _, rest = LOG[:end].decode().rpartition("\n")
        lines = whole.count("\n") + bool(whole)
        if end < len(HEADER) - 1:
            assert TAKE in message
        elif lines < 2:
            cut = f", which was cut off in line {1 + lines}; copy it again" if lines and rest else ""
            assert message.endswith(f"nothing to replay: no allocation of at least one byte in it{cut}")
        elif end == len(LOG) - 1:
            # Its stream is one that the log has, and no other begins so.
            assert (trace.events, trace.cut) == (3, None)
        else:
            assert trace.events == lines - 1
            cut = f"cut off in line {1 + lines}, read up to there as if the program had ended"
            assert trace.cut == (cut if rest else None)


@pytest.mark.parametrize(
    ("header", "earlier", "last", "is_whole"),
    [
        (HEADER, "0x10", "0x10", True),
        (HEADER, "0x10", " 0x10 ", True),
        (HEADER, "0x10", "0x1", False),
        (HEADER, "0x10", "0x1000", False),
        (HEADER, "0x10", "", False),
        (HEADER.replace("Stream\n", "Stream,More\n"), "0x10,0x10", "0x10,0x10", False),
        (HEADER.replace("Stream\n", "Stream,More\n"), "0x10,0x10", "0x10", False),
    ],
)
def test_a_last_line_without_an_end_counts_if_it_is_known_to_be_whole(tmp_path, header, earlier, last, is_whole):
    trace, _ = read(tmp_path, f"{header}1,1,allocate,0x100,512,{earlier}\n1,2,allocate,0x900,512,{last}".encode())
    assert (trace.events, trace.cut is None) == ((2, True) if is_whole else (1, False))


def test_a_stream_that_another_begins_with_may_be_cut(tmp_path):
    lines = [f"1,1,allocate,{number},512,{stream}\n" for number, stream in enumerate(["0x10", "0x1", "0x1"])]
    trace, _ = read(tmp_path, (HEADER + "".join(lines))[:-1].encode())
    assert trace.events == 2
    assert trace.cut.startswith("cut off in line 4")


def test_a_packed_log_that_was_cut_behind_its_header_is_told_of(tmp_path):
    # What packing makes no shorter, so that there are cuts in it.
    pointer = random.Random(1).randbytes(200).hex()
    content = packed(f"{HEADER}1,1,allocate,0x{pointer},512,0\n".encode())
    ends = {
        message[message.index("nothing") :]
        for end in range(len(content))
        if "nothing" in (message := read(tmp_path, content[:end])[1] or "")
    }
    nothing = "nothing to replay: no allocation of at least one byte in it, which was cut off"
    assert {f"{nothing} after line 1; copy it again", f"{nothing} in line 2; copy it again"} == ends


def test_a_packed_log_is_read_up_to_where_it_was_cut(tmp_path):
    lines = [f"1,{number},allocate,0x{512 * number:x},512,0\n" for number in range(200)]
    log = packed((HEADER + "".join(lines)).encode())
    seen = set()
    for end in range(len(log)):
        there = zlib.decompressobj(31).decompress(log[:end]).decode()
        trace, message = read(tmp_path, log[:end])
        if trace is None:
            assert there.count("\n") < 2, message
            continue
        # A line that only lacks its end is whole.
        whole = there.count("\n") + there.endswith(",512,0")
        seen.add(whole)
        assert trace.events == whole - 1
        place = f"after line {whole}" if there.endswith(("\n", ",512,0")) else f"in line {1 + whole}"
        assert trace.cut == f"cut off {place}, read up to there as if the program had ended"
    assert {2, 201} <= seen
    assert read(tmp_path, log)[0].cut is None


def test_a_snapshot_that_was_cut_is_refused(tmp_path):
    for content in (SNAPSHOT, packed(SNAPSHOT)):
        for end in range(len(content)):
            _, message = read(tmp_path, content[:end])
            # Behind what is packed there is a checksum.
            assert message is not None or (content is not SNAPSHOT and end >= len(content) - 9)
            assert message is None or re.search(r"; (take a memory snapshot|copy it again)", message), message
        assert read(tmp_path, content)[1] is None


def test_a_cut_is_told_of(run, tmp_path):
    (tmp_path / "a.csv").write_bytes(LOG[:-4])
    assert run("a.csv") == (
        0,
        "gpupool: a.csv: warning: cut off in line 4, read up to there as if the program had ended\n",
    )


def test_a_picture_tells_of_a_cut(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(LOG[:-4])
    assert "cut off in line 4, read up to there" in repr(gpupool.plot(path))


# Standard input.


@pytest.fixture
def give():
    """Make bytes this process's standard input: of a pipe, or of a file."""
    former = os.dup(0)

    def give(content, path=None):
        if path is None:
            reader, writer = os.pipe()
            os.write(writer, content)
            os.close(writer)
        else:
            path.write_bytes(content)
            reader = os.open(path, os.O_RDONLY)
        os.dup2(reader, 0)
        os.close(reader)

    yield give
    os.dup2(former, 0)
    os.close(former)


@pytest.mark.parametrize("content", [LOG, packed(LOG), SNAPSHOT], ids=["log", "packed", "snapshot"])
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_standard_input(run, give, tmp_path, content, kind):
    give(content, tmp_path / "given" if kind == "file" else None)
    assert run("-") == (0, "")


def test_wrong_files_of_standard_input(run, give):
    give(b"")
    assert run("-")[1].startswith(f"gpupool: /dev/stdin: an empty file{TAKE}")
    give(b'{"a": 1}')
    assert run("-")[1].startswith(f"gpupool: /dev/stdin: JSON{TAKE}")


# How much memory reading takes.


def counted(content):
    """Return the bytes that are counted: the least limit under which it is read."""
    low, high = 0, 1 << 40
    while low < high:
        middle = (low + high) // 2
        try:
            _native.unpickle(io.BytesIO(content), middle)
        except OverflowError:
            low = middle + 1
        else:
            high = middle
    return low


def taken(content):
    """Return the bytes that the values take."""
    tracemalloc.start()
    try:
        values = _native.unpickle(io.BytesIO(content), 1 << 40)
        return tracemalloc.get_traced_memory()[0] if values is not None else 0
    finally:
        tracemalloc.stop()


def entries(count):
    return [entry("alloc", (1 << 45) + 512 * number, 1000 + number, number, pool_id=(0, 1)) for number in range(count)]


@pytest.mark.parametrize(
    "content",
    [
        [{**each, "frames": [*FRAMES * 25]} for each in entries(500)],
        entries(2000),
        [FRAMES] * 100_000,
        [(number, number + 1) for number in range(1000, 20_000)],
        [f"name {number}" for number in range(20_000)],
        [[] for _ in range(20_000)],
    ],
    ids=["stacks", "entries", "one value", "tuples", "texts", "lists"],
)
def test_what_is_counted_is_what_the_values_take(content):
    pickled = pickle.dumps(content, 4)
    assert 0.6 < counted(pickled) / taken(pickled) < 1.6


@pytest.mark.parametrize("place", ["device_traces", "segments", "handle_events"])
def test_an_entry_that_is_there_many_times_takes_no_memory(tmp_path, place):
    one = {"device_traces": [[7]], "segments": [{"blocks": [7]}], "handle_events": [7]}[place]
    # The opcodes of a list with a number that is taken from the memo a million times.
    many = b"K\x07q\x0c0(" + b"h\x0c" * MIB + b"e"
    content = pickle.dumps({"segments": [], "device_traces": [], place: one}, 2).replace(b"K\x07a", many)
    path = tmp_path / "many.gz"
    path.write_bytes(packed(content))
    tracemalloc.start()
    with pytest.raises(_trace.TraceError, match=r"many.gz: reading it would take more than 65\.. MiB of memory, too"):
        _trace.read_file(str(path))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 40 * MIB
