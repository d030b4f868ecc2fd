"""A summary names PyTorch's own memory; what PyTorch has from gpupool is not told twice."""

import sys

import gpupool
import torch


def device():
    (found,) = gpupool.memory_summary(0).devices
    return found


def with_a_pool_of_gpupools():
    gpupool.empty(1).free()
    assert device().frameworks == (), f"PyTorch was not used yet: {device().frameworks}"
    kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    found = device()
    (told,) = found.frameworks
    expected = ("torch", torch.cuda.memory_reserved(0))
    assert (told.framework, told.reserved_bytes) == expected, f"{told} is told, not {expected}"
    assert found.other_bytes >= told.reserved_bytes >= 64 << 20, f"it is no part of the others' bytes: {found}"
    pool = gpupool.MemPool()
    with gpupool.torch.using(pool):
        fed = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    found = device()
    (again,) = found.frameworks
    assert again.reserved_bytes == told.reserved_bytes, f"what gpupool feeds is PyTorch's too: {again}, before {told}"
    (ours,) = [each for each in found.pools if each.id == pool.id]
    to_pytorch = sum(stream.live_bytes for stream in ours.streams if stream.is_feed)
    assert to_pytorch == ours.live_bytes >= 128 << 20, f"the pool does not say that it feeds PyTorch: {ours}"
    del kept, fed


def on_gpupool():
    gpupool.torch.enable()
    kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    found = device()
    assert found.frameworks == (), f"on gpupool PyTorch has memory of its own: {found.frameworks}"
    assert torch.cuda.memory_reserved(0) >= 64 << 20, "PyTorch does not tell of gpupool's memory"
    assert found.live_bytes >= 64 << 20, f"the tensor is not in gpupool's memory: {found}"
    del kept


if __name__ == "__main__":
    globals()[sys.argv[1]]()
