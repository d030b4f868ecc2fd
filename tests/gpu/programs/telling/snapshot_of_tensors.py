"""A snapshot shows PyTorch's tensors in gpupool's memory, and PyTorch's tools read it."""

import gpupool
import torch
from torch.cuda import _memory_viz as viz


def main():
    gpupool.record_memory_history()
    gpupool.torch.enable()
    tensors = [torch.empty(1 << 20, device="cuda") for _ in range(10)]
    side = torch.cuda.Stream()
    tensors[0].record_stream(side)
    with torch.cuda.stream(side):
        tensors[0].zero_()
    del tensors[:5]
    torch.cuda.synchronize()
    more = torch.empty(100 << 20, device="cuda")
    snapshot = gpupool.memory_snapshot()
    for read in (viz.segsum, viz.trace, viz.trace_plot, viz.segment_plot):
        assert read(snapshot), f"PyTorch's {read.__name__} makes nothing of it"
    trace = snapshot["device_traces"][0]
    actions = [entry["action"] for entry in trace]
    assert actions.count("alloc") >= 11, f"of 11 tensors {actions.count('alloc')} were recorded"
    freed = actions.count("free_requested")
    assert freed >= 5, f"of 5 tensors {freed} were recorded to be freed"
    assert "segment_map" in actions, f"no segment was recorded: {actions}"
    # PyTorch lets go of the GIL: no frames, and no wait for it.
    frames = [entry["frames"] for entry in trace if entry["action"] == "alloc"]
    assert not any(frames), f"frames were recorded: {frames}"
    del more


if __name__ == "__main__":
    main()
