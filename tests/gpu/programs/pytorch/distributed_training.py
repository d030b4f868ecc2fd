"""DDP and FSDP2 over NCCL on gpupool's memory.

Usage: distributed_training.py WAY RANKS, with the way ddp or fsdp2.
"""

import os
import sys
import tempfile

import gpupool
import torch
from torch import distributed


def model():
    torch.manual_seed(0)
    layers = torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)
    return torch.nn.Sequential(*layers).cuda()


def losses(wrapped, rank, ranks):
    optimiser = torch.optim.SGD(wrapped.parameters(), 0.05)
    found = []
    for step in range(20):
        torch.manual_seed(step)
        # All ranks together have the same data, however many they are.
        data = torch.randn(64, 256, device="cuda").chunk(ranks)[rank]
        loss = ((wrapped(data) - data) ** 2).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        told = loss.detach().clone()
        if ranks > 1:
            distributed.all_reduce(told, op=distributed.ReduceOp.AVG)
        found.append(float(told))
    return found


def wrap(way, plain):
    if way == "ddp":
        return torch.nn.parallel.DistributedDataParallel(plain)
    from torch.distributed.fsdp import fully_shard

    for layer in plain:
        if list(layer.parameters()):
            fully_shard(layer)
    return fully_shard(plain)


def work(rank, ranks, way, folder):
    torch.cuda.set_device(rank)
    torch.ones(1, device="cuda")
    gpupool.torch.enable()
    expected = losses(model(), 0, 1)
    distributed.init_process_group(
        "nccl",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        device_id=torch.device("cuda", rank),
    )
    try:
        wrapped = wrap(way, model())
        found = losses(wrapped, rank, ranks)
        numbers = torch.full((1 << 20,), rank + 1.0, device="cuda")
        distributed.all_reduce(numbers)
        assert bool((numbers == ranks * (ranks + 1) / 2).all()), "the sum over ranks is wrong"
        parts = [torch.empty(1 << 20, device="cuda") for _ in range(ranks)]
        distributed.all_gather(parts, torch.full((1 << 20,), float(rank), device="cuda"))
        assert all(bool((part == index).all()) for index, part in enumerate(parts)), "a gathered part is wrong"
    finally:
        torch.cuda.synchronize()
        distributed.destroy_process_group()
    assert found[-1] < found[0], f"nothing was learnt: {found}"
    most = max(abs(one - two) for one, two in zip(expected, found, strict=True))
    assert most < 1e-3, f"on {ranks} ranks the losses are {found}, and on one {expected}"
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == gpupool.memory_stats(rank).live_bytes


def main(way, ranks):
    if torch.cuda.device_count() < ranks:
        print(f"torch: {way}: there are fewer than {ranks} GPUs")
        return
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (ranks, way, folder), nprocs=ranks)
    print(f"torch: {way} on {ranks}: works")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
