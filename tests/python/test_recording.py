"""Recording: the switch, call stacks, threads, and what ends."""

import ctypes
import gc
import inspect
import sys
import threading
import types
import weakref

import gpupool
import pytest
from c_table import function
from forks import run_program
from gpupool import _native
from running import functions_of
from waiting import in_thread

KEEPS_CODE = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="free-threaded Python keeps code objects for ever"
)

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def record():
    """Start recording with these settings; ended after the test."""
    yield gpupool.record_memory_history
    gpupool.record_memory_history(None)


@pytest.fixture
def stream():
    return gpupool.Stream(0)


def entries(*actions):
    trace = gpupool.memory_snapshot(device=0)["device_traces"][0]
    return [entry for entry in trace if entry["action"] in actions]


def held_blocks():
    segments = gpupool.memory_snapshot(device=0)["segments"]
    return [block for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"]


def place(frame):
    return frame["name"], frame["filename"], frame["line"]


def allocate(stream, nbytes=1000):
    return gpupool.empty(nbytes, stream), inspect.currentframe().f_lineno


def test_frames_say_where_it_was_allocated_and_freed(record, stream):
    record()
    buffer, line = allocate(stream)
    here = inspect.currentframe().f_lineno - 1
    del buffer
    end = inspect.currentframe().f_lineno - 1
    alloc, requested, completed = entries("alloc", "free_requested", "free_completed")
    me = "test_frames_say_where_it_was_allocated_and_freed"
    assert [place(frame) for frame in alloc["frames"][:2]] == [("allocate", __file__, line), (me, __file__, here)]
    assert place(requested["frames"][0]) == place(completed["frames"][0]) == (me, __file__, end)
    # The innermost first, and whole.
    assert len(alloc["frames"]) == len(inspect.stack()) + 1


def test_what_is_allocated_slowly_has_frames_too(record, stream):
    record()
    # New memory is mapped without the GIL.
    buffer, line = allocate(stream, 30 << 20)
    alloc, mapped = entries("alloc")[0], entries("segment_map")[0]
    assert place(alloc["frames"][0]) == place(mapped["frames"][0]) == ("allocate", __file__, line)
    [segment] = [s for s in gpupool.memory_snapshot(device=0)["segments"] if s["address"] == mapped["addr"]]
    assert place(segment["frames"][0]) == ("allocate", __file__, line)
    buffer.free()
    assert place(entries("free_requested")[0]["frames"][0])[0] == "test_what_is_allocated_slowly_has_frames_too"


def test_live_blocks_have_the_frames_of_their_allocation(record, stream):
    before = gpupool.empty(1000, stream)
    record("state")
    buffer, line = allocate(stream)
    blocks = {block["address"]: block for block in held_blocks()}
    assert place(blocks[buffer.ptr]["frames"][0]) == ("allocate", __file__, line)
    assert blocks[before.ptr]["frames"] == []
    assert entries("alloc", "snapshot") == []
    record(None)
    assert [block["frames"] for block in held_blocks()] == [[], []]
    assert gpupool.memory_snapshot()["device_traces"] == [[], []]


@pytest.mark.parametrize(
    ("context", "blocks", "allocs", "frees"),
    [
        (None, False, False, False),
        ("state", True, False, False),
        ("alloc", True, True, False),
        ("all", True, True, True),
    ],
)
def test_contexts(record, stream, context, blocks, allocs, frees):
    record(context=context)
    kept = [gpupool.empty(1000, stream) for _ in range(2)]
    del kept[0]
    assert [bool(block["frames"]) for block in held_blocks()] == [blocks]
    assert {bool(entry["frames"]) for entry in entries("alloc")} == {allocs}
    assert {bool(entry["frames"]) for entry in entries("free_requested", "free_completed")} == {frees}


def test_no_local_variable_lives_longer(record, stream):
    class Local:
        pass

    def call():
        local = Local()
        gone.append(weakref.ref(local))
        return gpupool.empty(1000, stream)

    gone = []
    record()
    buffer = call()
    assert gone[0]() is None
    assert entries("alloc")[0]["frames"][0]["name"] == "call"
    assert buffer.nbytes == 1000


@KEEPS_CODE
def test_code_objects_are_dropped_with_the_recording(record, stream):
    namespace = {"empty": lambda: gpupool.empty(1000, stream)}
    exec("def made():\n    return empty()", namespace)
    code = weakref.ref(namespace["made"].__code__)
    record()
    namespace.pop("made")()
    gc.collect()
    assert code() is not None
    assert "made" in [frame["name"] for frame in entries("alloc")[0]["frames"]]
    record(None)
    assert code() is None


def test_a_deep_stack_keeps_its_innermost_frames(record, stream):
    def deep(depth):
        return deep(depth - 1) if depth else gpupool.empty(1000, stream)

    record()
    assert deep(200).nbytes == 1000
    frames = entries("alloc")[0]["frames"]
    assert len(frames) == 64
    assert {frame["name"] for frame in frames} == {"deep"}


def test_generators_and_comprehensions_have_lines(record, stream):
    def generate():
        for _ in range(2):
            yield gpupool.empty(1000, stream)  # the line

    record()
    kept = list(generate())
    source, first = inspect.getsourcelines(generate)
    line = first + next(number for number, text in enumerate(source) if "the line" in text)
    assert [place(entry["frames"][0]) for entry in entries("alloc")] == [("generate", __file__, line)] * 2
    assert len(kept) == 2


def test_c_callers_without_the_gil_have_no_frames_and_wait_for_nobody(record):
    record()
    prototypes = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
    # CFUNCTYPE lets go of the GIL, PYFUNCTYPE does not.
    without = ctypes.CFUNCTYPE(*prototypes)(gpupool.c_api.malloc)
    holding = ctypes.PYFUNCTYPE(*prototypes)(gpupool.c_api.malloc)
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(gpupool.c_api.free)
    addresses = [call(1000, 0, None) for call in (without, holding)]
    found = [[frame["name"] for frame in entry["frames"][:1]] for entry in entries("alloc")]
    me = "test_c_callers_without_the_gil_have_no_frames_and_wait_for_nobody"
    assert found in ([[], ["<listcomp>"]], [[], [me]])
    for address in addresses:
        free(address, 1000, 0, None)
    assert [entry["frames"] for entry in entries("free_requested")] == [[], []]


class Recording(ctypes.Structure):
    """gpupool_recording, with no events but stacks of live blocks."""

    _fields_ = (
        ("size", ctypes.c_uint64),
        ("most_events", ctypes.c_uint64),
        ("live_stacks", ctypes.c_int),
        ("alloc_stacks", ctypes.c_int),
        ("free_stacks", ctypes.c_int),
        ("skipped_actions", ctypes.c_uint32),
        ("take_stack", ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_int)),
    )


def test_stacks_of_a_c_program_and_of_python_are_told_apart(record, stream):
    ours = 1 << 31 | 5
    take = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_int)(lambda _is_free: ours)
    wanted = Recording(ctypes.sizeof(Recording), 100, 1, 1, 1, 0, take)
    assert function("record")(ctypes.byref(wanted)) == 0
    by_c = gpupool.empty(1000, stream)
    assert [block["frames"] for block in held_blocks()] == [[]], "Python knows nothing of it"
    assert [entry["frames"] for entry in entries("alloc")] == [[]]
    record()
    by_python = gpupool.empty(5000, stream)
    frames = {block["address"]: [frame["name"] for frame in block["frames"]] for block in held_blocks()}
    assert frames[by_c.ptr] == []
    assert frames[by_python.ptr][0] == inspect.currentframe().f_code.co_name

    found = []

    def visit(context, stack):
        found.append(stack)

    visit = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32)(visit)
    assert function("visit_stacks")(None, visit) == 0
    assert found == [ours], "the program knows nothing of Python's"
    block = (ctypes.c_uint64 * 12)(96)
    stacks = []
    for buffer in (by_c, by_python):
        assert function("find_block")(ctypes.c_void_p(buffer.ptr), block) == 0
        stacks.append(block[11] & 0xFFFFFFFF)
    assert stacks == [ours, 0]
    assert function("record")(None) == 0
    assert entries("alloc") == []


def test_each_thread_is_named_by_its_number(record, stream):
    numbers = []

    def work():
        numbers.append(threading.get_native_id())
        gpupool.empty(1000, stream)

    record()
    for _ in range(4):
        in_thread(work)
    assert [entry["thread"] for entry in entries("alloc")] == numbers
    times = [entry["time_us"] for entry in gpupool.memory_snapshot(device=0)["device_traces"][0]]
    assert times == sorted(times)


def test_handles_have_events(record, stream):
    gpupool.simulated.trim()
    record()
    gpupool.simulated.lease(stream).discard()
    gpupool.simulated.trim()
    events = gpupool.memory_snapshot()["handle_events"]
    assert [event["action"] for event in events] == ["create", "take", "discard", "destroy"]
    assert set(events[-1]) == {"time_us", "library", "device", "action", "handle", "thread"}
    assert (events[-1]["library"], events[-1]["thread"]) == ("simulated", threading.get_native_id())
    pool = gpupool.HandlePool("recorded", lambda: 0x77, lambda handle: None)
    pool.warm(1)
    pool.close()
    event = gpupool.memory_snapshot()["handle_events"][-1]
    assert (event["library"], event["action"], event["handle"]) == ("recorded", "destroy", 0x77)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"enabled": "some"}, "enabled is 'some': give 'all' or 'state', or None to stop"),
        ({"enabled": True}, "enabled is True: give 'all' or 'state', or None to stop"),
        ({"enabled": False}, "enabled is False: give 'all' or 'state', or None to stop"),
        ({"context": "some"}, "context=\"some\" is not valid: give 'state', 'alloc', 'all' or None"),
        ({"stacks": "all"}, "stacks=\"all\" is not valid: give 'python'"),
        ({"max_entries": 0}, "max_entries must be at least 1"),
        ({"max_entries": -1}, "max_entries is -1: give a whole number"),
        ({"skip_actions": ["frees"]}, 'skip_actions="frees" is not valid: give alloc, free_requested'),
    ],
)
def test_settings_that_there_are_not(record, arguments, message):
    with pytest.raises(gpupool.InvalidValue) as raised:
        record(**arguments)
    assert message in str(raised.value)


def test_the_defaults_are_as_documented(record, stream):
    record(max_entries=(1 << 64) - 1)
    kept = gpupool.empty(1000, stream)
    assert len(entries("alloc")) == 1
    assert kept.nbytes == 1000


@KEEPS_CODE
def test_many_stacks_are_kept_and_those_that_nothing_names_are_dropped(record, stream):
    """Each of them ends in a function of its own."""
    record(max_entries=100)

    def made():
        return _native.empty(1000, stream)

    references = []
    for _ in range(70_000):
        code = made.__code__.replace()
        references.append(weakref.ref(code))
        types.FunctionType(code, globals(), closure=made.__closure__)()
        del code
    alive = sum(reference() is not None for reference in references)
    assert 100 // 3 <= alive < 40_000
    assert all(entry["frames"][0]["name"] == "made" for entry in entries("alloc"))


@pytest.mark.parametrize("function", functions_of("process/recording.py"))
def test_recordings_of_processes(function):
    run_program("process/recording.py", function)
