"""NCCL on gpupool's memory: DDP, FSDP2, and pools that `register_mem_pool` of PyTorch's registers.

Usage: distributed_training.py WAY RANKS, with the way ddp, fsdp2 or registered.
"""

import os
import sys
import tempfile

import gpupool
import torch
from errors import assert_says, raised
from torch import distributed

# Of the numbers in a registered tensor.
COUNT = 16 << 20


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


def train(rank, ranks, way):
    """Train on all ranks, use what is collective, and return the losses."""
    found = losses(wrap(way, model()), rank, ranks)
    numbers = torch.full((1 << 20,), rank + 1.0, device="cuda")
    distributed.all_reduce(numbers)
    assert bool((numbers == ranks * (ranks + 1) / 2).all()), "the sum over ranks is wrong"
    parts = [torch.empty(1 << 20, device="cuda") for _ in range(ranks)]
    distributed.all_gather(parts, torch.full((1 << 20,), float(rank), device="cuda"))
    assert all(bool((part == index).all()) for index, part in enumerate(parts)), "a gathered part is wrong"
    return found


def check_training(expected, found, rank, ranks):
    assert found[-1] < found[0], f"nothing was learnt: {found}"
    most = max(abs(one - two) for one, two in zip(expected, found, strict=True))
    assert most < 1e-3, f"on {ranks} ranks the losses are {found}, and on one {expected}"
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == gpupool.memory_stats(rank).live_bytes


def check_sums(rank, ranks, numbers):
    for step in range(4):
        numbers.fill_(rank + step)
        distributed.all_reduce(numbers)
        assert bool((numbers == sum(other + step for other in range(ranks))).all()), "the sum over ranks is wrong"


def register(rank, ranks):
    """Register a pool with no_split: what is there, and what comes later, until it is deregistered."""
    backend = distributed.distributed_c10d._get_default_group()._get_backend(torch.device("cuda", rank))
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        early = torch.empty(COUNT, device="cuda")
    backend.register_mem_pool(pool)
    with torch.cuda.use_mem_pool(pool):
        late = torch.empty(3 * COUNT, device="cuda")
    segments = {segment["address"]: segment for segment in pool.snapshot()}
    for tensor in (early, late):
        segment = segments[tensor.data_ptr()]
        assert (segment["total_size"], segment["is_expandable"]) == (tensor.nbytes, False), segment
        check_sums(rank, ranks, tensor)
    address = late.data_ptr()
    del late
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    # PyTorch's NCCL may hold the tensor still, so another one need not get its memory.
    assert address in {segment["address"] for segment in pool.snapshot()}, "what is registered went by empty_cache"
    with torch.cuda.use_mem_pool(pool):
        again = torch.empty(3 * COUNT, device="cuda")
    check_sums(rank, ranks, again)
    backend.deregister_mem_pool(pool)
    check_sums(rank, ranks, early)
    # A pool whose pages move is not registered, for NCCL would read what has moved away.
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(COUNT, device="cuda")
    assert_says(raised(RuntimeError, backend.register_mem_pool, pool), "registration counter")
    del tensor


def work(rank, ranks, way, folder):
    torch.cuda.set_device(rank)
    torch.ones(1, device="cuda")
    gpupool.torch.enable()
    is_trained = way != "registered"
    expected = losses(model(), 0, 1) if is_trained else []
    distributed.init_process_group(
        "nccl",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        device_id=torch.device("cuda", rank),
    )
    try:
        found = train(rank, ranks, way) if is_trained else register(rank, ranks)
    finally:
        torch.cuda.synchronize()
        distributed.destroy_process_group()
    if is_trained:
        check_training(expected, found, rank, ranks)


def main(way, ranks):
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (ranks, way, folder), nprocs=ranks)
    print(f"torch: {way} on {ranks}: works")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
