"""A snapshot of gpupool's has the keys that one of this PyTorch has, with values of the same types."""

import gpupool
import torch

MIB = 1 << 20
# Newer versions add keys that are for PyTorch's own features.
KNOWN = {"registration_counter", "host_segments", "host_traces", "internal_metadata"}


def entry(snapshot):
    traces = snapshot["device_traces"]
    return next(entry for trace in traces for entry in trace if entry["action"] == "alloc" and entry["frames"])


def main():
    gpupool.record_memory_history()
    torch.cuda.memory._record_memory_history(max_entries=1000)
    tensor = torch.empty(MIB, device="cuda")
    theirs = torch.cuda.memory._snapshot()
    buffer = gpupool.empty(MIB)
    ours = gpupool.memory_snapshot()
    assert set(theirs) - KNOWN <= set(ours)
    assert set(theirs["allocator_settings"]) <= set(ours["allocator_settings"])
    for path in (["segments", 0], ["segments", 0, "blocks", 0]):
        mine, other = ours, theirs
        for key in path:
            mine, other = mine[key], other[key]
        assert set(other) - KNOWN <= set(mine), path
    mine, other = entry(ours), entry(theirs)
    assert set(other) - KNOWN <= set(mine)
    newer = {key for key in other["frames"][0] if key.startswith(("fx_", "forward_"))}
    assert set(other["frames"][0]) <= {"name", "filename", "line"} | newer
    for value in ("addr", "size", "stream", "time_us"):
        assert type(other[value]) is type(mine[value]), value
    assert len(str(other["time_us"])) == len(str(mine["time_us"])), "both count from 1970"
    assert (tensor.nbytes, buffer.nbytes) == (4 * MIB, MIB)


if __name__ == "__main__":
    main()
