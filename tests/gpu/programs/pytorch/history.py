"""PyTorch's snapshots and history of memory with gpupool enabled after the first tensor, as its viewers take them."""

import pickle
import sys
import tempfile
from pathlib import Path

import gpupool
import late
import torch
from errors import raised
from late import MIB, filled
from torch.cuda import _memory_viz, memory

late.enable()


def make_a_tensor():
    return filled(3, 2 * MIB)


def block_of(snapshot, address):
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    (found,) = [block for block in blocks if block["address"] == address]
    return found


def functions_of(frames):
    return {frame["name"] for frame in frames}


def is_in_segments_without_recording():
    tensor = filled(1, 5 * MIB)
    segments = torch.cuda.memory_snapshot()
    found = block_of({"segments": segments}, tensor.data_ptr())
    told = found["state"], found["requested_size"]
    assert told == ("active_allocated", 20 * MIB), f"the tensor's block is {found}"
    for segment in segments:
        sizes = sum(block["size"] for block in segment["blocks"])
        assert sizes == segment["total_size"], f"the blocks of a segment are {sizes} bytes: {segment}"
        live = sum(block["size"] for block in segment["blocks"] if block["state"] == "active_allocated")
        assert live == segment["allocated_size"], f"{live} bytes of a segment are allocated: {segment}"


def has_stacks_of_python():
    memory._record_memory_history(stacks="python", max_entries=1000)
    tensor, gone = make_a_tensor(), make_a_tensor()
    addresses = tensor.data_ptr(), gone.data_ptr()
    del gone
    torch.cuda.synchronize()
    snapshot = memory._snapshot()
    block = block_of(snapshot, addresses[0])
    assert "make_a_tensor" in functions_of(block["frames"]), f"the live block's stack is {block['frames']}"
    events = [(event["action"], event["addr"]) for event in snapshot["device_traces"][0]]
    for expected in (
        ("alloc", addresses[0]),
        ("alloc", addresses[1]),
        ("free_requested", addresses[1]),
        ("free_completed", addresses[1]),
    ):
        assert expected in events, f"{expected} is not among the events {events}"
    (event,) = [
        each for each in snapshot["device_traces"][0] if (each["action"], each["addr"]) == ("alloc", addresses[0])
    ]
    assert "make_a_tensor" in functions_of(event["frames"]), f"the event's stack is {event['frames']}"
    assert event["size"] == 8 * MIB, f"the event's size is {event['size']}"
    assert event["time_us"] > 0, "the event has no time"
    memory._record_memory_history(None)
    assert not any(memory._snapshot()["device_traces"]), "there are events after recording has ended"


def has_stacks_of_cpp():
    memory._record_memory_history(stacks="all", max_entries=100)
    tensor = make_a_tensor()
    frames = functions_of(block_of(memory._snapshot(), tensor.data_ptr())["frames"])
    memory._record_memory_history(None)
    assert "make_a_tensor" in frames, f"of Python there is {frames}"
    assert any("empty" in name or "at::" in name for name in frames), f"of C++ there is {frames}"


def keeps_the_last_events():
    memory._record_memory_history(stacks="python", max_entries=10)
    for value in range(50):
        filled(value)
    events = memory._snapshot()["device_traces"][0]
    memory._record_memory_history(None)
    assert 1 <= len(events) <= 10, f"{len(events)} events were kept, of 10"


def leaves_out_actions():
    memory._record_memory_history(stacks="python", max_entries=1000, skip_actions=["free_requested"])
    filled(1)
    actions = {event["action"] for event in memory._snapshot()["device_traces"][0]}
    memory._record_memory_history(None)
    assert "free_requested" not in actions, f"the actions are {actions}"
    assert "free_completed" in actions, f"the actions are {actions}"


def is_dumped_for_the_viewer():
    memory._record_memory_history(stacks="python", max_entries=10000)
    tensors = [make_a_tensor() for _ in range(5)]
    del tensors[::2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        memory._dump_snapshot(str(path))
        snapshot = pickle.loads(path.read_bytes())
        ours = Path(folder) / "ours.json"
        gpupool.dump_snapshot(ours)
        assert ours.stat().st_size > 0
    memory._record_memory_history(None)
    assert "allocator_settings" in snapshot, snapshot.keys()
    for show in (_memory_viz.segsum, _memory_viz.trace, _memory_viz.trace_plot, _memory_viz.segment_plot):
        text = show(snapshot)
        assert text, f"{show.__name__} shows nothing"


def has_what_users_add():
    memory._record_memory_history(stacks="python", max_entries=1000, global_record_annotations=True)
    if hasattr(torch._C, "_cuda_setMemoryMetadata"):
        memory._set_memory_metadata("epoch 3")
        assert memory._get_memory_metadata() == "epoch 3"
    with torch.profiler.record_function("my annotation"):
        tensor = make_a_tensor()
    snapshot = memory._snapshot()
    memory._record_memory_history(None)
    if hasattr(torch._C, "_cuda_setMemoryMetadata"):
        events = [each for each in snapshot["device_traces"][0] if each["action"] == "alloc"]
        (event,) = [each for each in events if each["addr"] == tensor.data_ptr()]
        assert event.get("user_metadata") == "epoch 3", f"the event has {event.get('user_metadata')!r}"
        memory._set_memory_metadata("")
    names = {annotation["name"] for annotation in snapshot["external_annotations"]}
    assert "my annotation" in names, f"the annotations are {names}"


def tells_of_failures():
    memory._record_memory_history(stacks="python", max_entries=1000)
    raised(torch.OutOfMemoryError, torch.empty, 1 << 50, dtype=torch.uint8, device="cuda")
    events = memory._snapshot()["device_traces"][0]
    memory._record_memory_history(None)
    assert [event for event in events if event["action"] == "oom"], "no event tells that memory ran out"


def is_one_recording_with_gpupools():
    gpupool.record_memory_history()
    filled(1)
    memory._record_memory_history(stacks="python", max_entries=1000)
    tensor = make_a_tensor()
    block = block_of(memory._snapshot(), tensor.data_ptr())
    assert "make_a_tensor" in functions_of(block["frames"]), f"the stack is {block['frames']}"
    gpupool.memory_snapshot()
    memory._record_memory_history(None)
    memory._snapshot()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
