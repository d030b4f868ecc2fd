"""PyTorch's statistics with gpupool enabled after the first tensor: every key, peaks, sums, agreeing with gpupool's."""

import sys

import gpupool
import late
import torch
from errors import raised
from late import MIB, filled, native_stats, totals

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


def tell_small_from_large():
    names = [f"allocation.{kind}_pool.current" for kind in ("small", "large")]
    counts = [stat(name) for name in names]
    small = torch.empty(1000, dtype=torch.uint8, device="cuda")
    assert [stat(name) for name in names] == [counts[0] + 1, counts[1]], "a small tensor is not counted as small"
    large = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    assert [stat(name) for name in names] == [counts[0] + 1, counts[1] + 1], "a large tensor is not counted as large"
    del small, large


def have_every_key():
    keys = set(torch.cuda.memory_stats())
    assert keys == late.native_keys, f"missing {late.native_keys - keys}, and more are {keys - late.native_keys}"
    nested = torch.cuda.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == torch.cuda.memory_allocated()


def reset_peaks():
    kept = filled(1)
    del kept
    torch.cuda.reset_peak_memory_stats()
    at = torch.cuda.memory_allocated()
    assert torch.cuda.max_memory_allocated() == at, "the peak was not reset"
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    del tensor
    assert at + 64 * MIB <= torch.cuda.max_memory_allocated() <= at + 72 * MIB, "the peak is another"
    assert torch.cuda.max_memory_reserved() >= torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated(), "the peak was not reset again"


def reset_sums():
    before = stat("allocated_bytes.all.allocated")
    filled(1)
    assert stat("allocated_bytes.all.allocated") >= before + 4 * MIB, "the sum does not grow"
    torch.cuda.reset_accumulated_memory_stats()
    for name in ("allocation.all.allocated", "allocation.all.freed", "allocated_bytes.all.allocated", "num_ooms"):
        assert stat(name) == 0, f"{name} is {stat(name)} after it was reset"
    filled(2)
    assert stat("allocation.all.allocated") == stat("allocation.all.freed") > 0, torch.cuda.memory_stats()


def count_failures():
    ooms = stat("num_ooms")
    raised(torch.OutOfMemoryError, torch.empty, 1 << 50, dtype=torch.uint8, device="cuda")
    assert stat("num_ooms") == ooms + 1, f"{stat('num_ooms')} requests failed, and {ooms} before"


def make_a_summary():
    tensor = filled(1)
    for abbreviated in (False, True):
        text = torch.cuda.memory_summary(abbreviated=abbreviated)
        assert "PyTorch CUDA memory summary, device ID 0" in text, text
        assert "Allocated memory" in text, text
    del tensor


def follow_the_cache():
    tensor = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    reserved = torch.cuda.memory_reserved()
    del tensor
    assert torch.cuda.memory_reserved() == reserved, "what was freed is not kept"
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved - 256 * MIB, "the cache was not emptied"


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


def ask_the_device():
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total
    assert torch.cuda.get_allocator_backend() == "native", "PyTorch's Python asks for this name"


if __name__ == "__main__":
    globals()[sys.argv[1]]()
