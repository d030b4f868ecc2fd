"""PyTorch's statistics with gpupool enabled after the first tensor: every key, and numbers like gpupool's."""

import sys

import gpupool
import late
import torch
from late import MIB, filled, native_keys, native_stats, totals

late.enable()


def stat(name):
    return torch.cuda.memory_stats()[name]


def count_tensors():
    torch.cuda.synchronize()
    allocated, requested = torch.cuda.memory_allocated(), stat("requested_bytes.all.current")
    tensors = [filled(value) for value in range(8)]
    more = torch.cuda.memory_allocated() - allocated
    assert 32 * MIB <= more <= 36 * MIB, f"8 tensors of 4 MiB are {more} bytes"
    more = stat("requested_bytes.all.current") - requested
    assert more == 32 * MIB, f"8 tensors of 4 MiB were requested as {more} bytes"
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    del tensors
    assert torch.cuda.memory_allocated() == allocated, "what was freed is counted still"


def have_every_key():
    keys = set(torch.cuda.memory_stats())
    assert keys == native_keys, f"missing {native_keys - keys}, and more are {keys - native_keys}"
    text = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary, device ID 0" in text, text


def agree_with_gpupools():
    tensors = [torch.empty(1000 * (i + 1), dtype=torch.uint8, device="cuda") for i in range(100)]
    tensors.append(gpupool.empty(5 * MIB))
    torch.cuda.synchronize()
    ours, theirs = totals(), torch.cuda.memory_stats()
    keys = "active_bytes.all.current", "reserved_bytes.all.current", "active.all.current"
    told = tuple(theirs[key] - native_stats[key] for key in keys)
    expected = ours.live_bytes, ours.reserved_bytes, ours.live_blocks
    assert told == expected, f"PyTorch tells {told} active bytes, reserved bytes, blocks, and gpupool {expected}"
    (summary,) = gpupool.memory_summary(0).devices
    assert summary.frameworks == (), f"PyTorch's memory is told twice: {summary.frameworks}"
    del tensors


if __name__ == "__main__":
    globals()[sys.argv[1]]()
