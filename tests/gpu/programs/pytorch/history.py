"""PyTorch's snapshots and history of memory with gpupool enabled after the first tensor, as its viewers take them."""

import pickle
import sys
import tempfile
from pathlib import Path

import gpupool
import late
import torch
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
