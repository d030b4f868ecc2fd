"""Reading allocation traces."""

import gzip
import io
import os
import pickle
import re
from array import array
from pathlib import Path

import pytest
from gpupool._traces import trace as _trace

DATA = Path(__file__).parents[1] / "data"
HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"


@pytest.fixture
def read(tmp_path):
    """Write a file and read it as a trace."""

    def read(content, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return _trace.read(str(path))

    return read


def events(trace):
    """Return the events as a readable list: +slot:size@stream or -slot@stream."""
    packed = [array(code) for code in "IQI"]
    for numbers, nbytes in zip(packed, (trace.slots, trace.sizes, trace.streams), strict=True):
        numbers.frombytes(nbytes)
    assert [len(numbers) for numbers in packed] == [trace.events] * 3
    found = []
    for slot, size, stream in zip(*packed, strict=True):
        if slot & _trace.FREE:
            assert size == 0
            found.append(f"-{slot ^ _trace.FREE}@{stream}")
        else:
            found.append(f"+{slot}:{size}@{stream}")
    return found


def log(*lines):
    return HEADER + "".join(f"1,2,{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("lines", "expected", "peak"),
    [
        pytest.param(
            "allocate,0xa,100,0 allocate,0xb,50,0 free,0xa,100,0 allocate,0xa,70,0 free,0xb,50,0",
            "+0:100@0 +1:50@0 -0@0 +2:70@0 -1@0",
            150,
            id="an address is used again",
        ),
        pytest.param(
            "free,0xa,100,7 allocate,0xa,100,0 free,0xb,1,0 free,0xa,100,0 free,0xa,100,0",
            "+0:100@0 -0@0",
            100,
            id="frees of unknown pointers are skipped",
        ),
        pytest.param(
            "allocate,0xa,100,0 allocate,0xa,30,5 free,0xa,30,5",
            "+0:100@0 -0@0 +1:30@1 -1@1",
            100,
            id="an allocation of a live pointer ends the former",
        ),
        pytest.param(
            "allocate,1,1,0x20 allocate,2,1,9 free,1,1,32",
            "+0:1@0 +1:1@1 -0@0",
            2,
            id="streams are numbered as they appear",
        ),
        pytest.param(
            "allocate,1,1,0x20 allocate,2,1,9 free,1,1,0",
            "+0:1@1 +1:1@2 -0@0",
            2,
            id="the default stream is always the first",
        ),
    ],
)
def test_log(read, lines, expected, peak):
    trace = read(log(*lines.split()))
    assert events(trace) == expected.split()
    assert (trace.name, trace.peak_live, trace.device) == ("trace.csv", peak, None)
    assert trace.slot_count == expected.count("+")


@pytest.mark.parametrize(
    ("name", "count", "peak"), [("gnn_sampled", 59559, 22632469400), ("two_streams", 73163, 4843126792)]
)
def test_recorded_logs(name, count, peak):
    trace = _trace.read(str(DATA / f"{name}-1.csv.gz"))
    assert (trace.name, trace.events, trace.peak_live) == (f"{name}-1.csv.gz", count, peak)
    assert len(set(trace.streams[::4])) == (2 if name == "two_streams" else 1)


def test_content_says_the_format_not_the_name(read):
    content = log("allocate,0xa,100,0")
    assert read(gzip.compress(content.encode())).peak_live == 100
    assert read(content, "trace.csv.gz").peak_live == 100
    assert read(gzip.compress(snapshot([alloc(1, 2)])), "trace.csv").peak_live == 2


def test_columns_are_found_by_name(read):
    trace = read(
        'Stream,"Size",Note,Pointer,Action\r\n'
        '0x0,"100","one, two",0xa,"allocate"\r\n'
        "\r\n"
        "0,100,,0xa,deallocate,more\r\n"
        "0,1,,(nil),allocate failure\r\n"
    )
    assert events(trace) == ["+0:100@0", "-0@0"]


@pytest.mark.parametrize(
    "line",
    [
        "allocate,0xa,many,0",
        "allocate,0xa,-1,0",
        f"allocate,0xa,{1 << 64},0",
        "allocate,0xa,100,default",
        "allocate,0xa,100",
        "free,0xa",
        "reallocate,0xa,100,0",
        "",
    ],
)
def test_malformed_line(read, line):
    expected = f"trace.csv: line 3: neither an allocation nor a free: '1,2,{line}'; correct or remove the line"
    with pytest.raises(_trace.TraceError, match=re.escape(expected)):
        read(log("allocate,0xa,100,0", line, "free,0xa,100,0"))


def test_message_shows_the_start_of_a_long_line(read):
    with pytest.raises(_trace.TraceError, match=r"line 2: .*'1,2,x{73}\.\.\.'"):
        read(log("x" * 1000))


@pytest.mark.parametrize("content", [HEADER, log("free,0xa,1,0"), log("allocate,0xa,0,0")])
def test_nothing_to_replay(read, content):
    with pytest.raises(_trace.TraceError, match=r"trace.csv: nothing to replay"):
        read(content)


def test_damaged_gzip(read):
    content = bytearray(gzip.compress(log("allocate,0xa,100,0").encode()))
    content[-5] ^= 1
    with pytest.raises(_trace.TraceError, match=r"trace.csv: (cannot be read: CRC|damaged)"):
        read(bytes(content))


def alloc(address, size, stream=0, action="alloc"):
    frames = [{"filename": "train.py", "line": 3, "name": "step"}]
    return {"action": action, "addr": address, "size": size, "stream": stream, "time_us": 1, "frames": frames}


def free(address, stream=0, action="free_completed"):
    return alloc(address, 0, stream, action)


def snapshot(*device_traces, protocol=4):
    segments = [{"address": 0, "total_size": 2 << 20, "segment_pool_id": (0, 0), "is_expandable": False, "blocks": []}]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "garbage_collection_threshold": 0.0, "last": None}
    content = {"segments": segments, "device_traces": list(device_traces), "allocator_settings": settings}
    return pickle.dumps(content, protocol)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_snapshot(read, protocol):
    entries = [
        alloc(0, 2 << 20, action="segment_alloc"),
        free(7),
        alloc(1, 100),
        alloc(2, 50, 8),
        free(2, action="free_requested"),
        {"action": "oom", "size": 1 << 40, "device_free": 5, "stream": 0, "time_us": 1, "frames": []},
        alloc(3, 10),
        free(2),
        free(1, action="free_requested"),
        alloc(0, 0, action="snapshot"),
    ]
    trace = read(snapshot(entries, protocol=protocol), "snapshot.pickle")
    assert events(trace) == ["+0:100@0", "+1:50@1", "+2:10@0", "-1@0"]
    assert (trace.name, trace.peak_live, trace.device, trace.device_count) == ("snapshot.pickle", 160, 0, 1)


def test_snapshot_that_tells_only_of_requested_frees(read):
    trace = read(snapshot([alloc(1, 100), free(1, action="free_requested"), alloc(1, 20)]))
    assert events(trace) == ["+0:100@0", "-0@0", "+1:20@0"]


def test_snapshot_of_several_devices(read):
    trace = read(snapshot([alloc(1, 100)], [], [alloc(1, 7), free(1)]))
    assert events(trace) == ["+0:7@0", "-0@0"]
    assert (trace.device, trace.device_count) == (2, 2)


@pytest.mark.parametrize("device_traces", [[], [[]], [[], []]])
def test_snapshot_without_history(read, device_traces):
    expected = r"snap: a snapshot without a trace: call gpupool\.record_memory_history\(\), or in PyTorch torch\.cuda"
    with pytest.raises(_trace.TraceError, match=expected):
        read(snapshot(*device_traces), "snap")


class _Call:
    """Unpickled, it calls the function."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


def test_snapshot_never_runs_code(read, tmp_path):
    ran = tmp_path / "ran"
    content = pickle.dumps({"segments": [], "device_traces": [[_Call(os.mkdir, str(ran))]]})
    expected = r"bad: not a PyTorch memory snapshot, or a damaged one: it names posix\.mkdir, which could run code; "
    with pytest.raises(_trace.TraceError, match=expected):
        read(content, "bad")
    assert not ran.exists()
    pickle.loads(content)
    assert ran.exists(), "the file would have done nothing anyway"


@pytest.mark.parametrize("content", [_Call(eval, "1"), _Call(getattr, "", "join"), {1}.__class__, io.BytesIO])
def test_no_global_is_allowed(read, content):
    with pytest.raises(_trace.TraceError, match=r"it names \w+\.\w+, which could run code"):
        read(pickle.dumps(content))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (snapshot([alloc(1, 2)])[:-10], ""),
        (b"\x80", ""),
        (b"\x80\xff", "unsupported pickle protocol: 255"),
        (b"\x80\x04K\x01\x82\x01.", ""),
        (pickle.dumps([1, 2]), r"segments\[0\]: 'int' object is not subscriptable"),
        (pickle.dumps((1, 2)), "it has no lists device_traces"),
        (pickle.dumps({"segments": []}), "it has no lists device_traces"),
        (pickle.dumps({"device_traces": [None]}), "it has no lists device_traces"),
        (snapshot([alloc(1, 2), {"addr": 1}]), r"device_traces\[0\]\[1\]: no 'action'"),
        (snapshot([{"action": "alloc", "addr": 1, "size": 1}]), r"device_traces\[0\]\[0\]: no 'stream'"),
        (snapshot([alloc(1, 2), alloc([], 2)]), r"device_traces\[0\]\[1\]: addr \[\], size 2, stream 0"),
        (snapshot([alloc(1, -2)]), r"device_traces\[0\]\[0\]: addr 1, size -2, stream 0"),
        (snapshot([alloc(1, 2), alloc(2, 3), 5]), r"device_traces\[0\]\[2\]: 'int' object is not subscriptable"),
    ],
)
def test_damaged_snapshot(read, content, reason):
    with pytest.raises(_trace.TraceError, match=f"snap: not a PyTorch memory snapshot, or a damaged one: {reason}"):
        read(content, "snap")
