"""`register_mem_pool` of PyTorch's NCCL on pools of gpupool's, in a process for each of two GPUs."""

import os
import tempfile

import gpupool
import torch
from errors import raised
from torch import distributed

RANKS = 2
COUNT = 16 << 20


def check_sums(rank, numbers):
    for step in range(4):
        numbers.fill_(rank + step)
        distributed.all_reduce(numbers)
        assert bool((numbers == sum(other + step for other in range(RANKS))).all()), "the sum over ranks is wrong"


def registered(rank, backend):
    """A pool with no_split: what is there is registered, and what comes later, until it is deregistered."""
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
        check_sums(rank, tensor)
    address = late.data_ptr()
    del late
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    # PyTorch's NCCL may hold the tensor still, so another one need not get its memory.
    assert address in {segment["address"] for segment in pool.snapshot()}, "what is registered went by empty_cache"
    with torch.cuda.use_mem_pool(pool):
        again = torch.empty(3 * COUNT, device="cuda")
    check_sums(rank, again)
    backend.deregister_mem_pool(pool)
    check_sums(rank, early)


def refused(backend):
    """A pool whose pages move is not registered, for NCCL would read what has moved away."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(COUNT, device="cuda")
    error = raised(RuntimeError, backend.register_mem_pool, pool)
    assert "registration counter" in str(error), error
    del tensor


def work(rank, folder):
    torch.cuda.set_device(rank)
    torch.ones(1, device="cuda")
    gpupool.torch.enable()
    device = torch.device("cuda", rank)
    distributed.init_process_group(
        "nccl", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, device_id=device
    )
    try:
        backend = distributed.distributed_c10d._get_default_group()._get_backend(device)
        registered(rank, backend)
        refused(backend)
    finally:
        torch.cuda.synchronize()
        distributed.destroy_process_group()


def main():
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (folder,), nprocs=RANKS)
    print("torch: register_mem_pool on 2: works")


if __name__ == "__main__":
    main()
