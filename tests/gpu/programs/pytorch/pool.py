"""A pool of PyTorch's takes its memory from gpupool's functions in C."""

import gc

import gpupool
import torch

MIB = 1 << 20


def live_bytes():
    return gpupool.memory_stats(0).live_bytes


def main():
    torch.empty(1, device="cuda")
    allocator = torch._C._cuda_customAllocator(gpupool.c_api.malloc, gpupool.c_api.free)
    pool = torch.cuda.MemPool(allocator)

    before = live_bytes()
    with torch.cuda.use_mem_pool(pool):
        tensors = [torch.full((MIB,), index, dtype=torch.int32, device="cuda") for index in range(32)]
    assert live_bytes() >= before + 32 * 4 * MIB, "the tensors are not in gpupool's memory"
    for index, tensor in enumerate(tensors):
        assert int(tensor.sum()) == index * MIB, f"tensor {index} has other values"
    # Beside it PyTorch's own memory is what it was.
    assert torch.cuda.memory_allocated() > 0, "PyTorch no longer counts its own memory"
    del tensors, tensor
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    assert live_bytes() == before, f"memory is left: {gpupool.memory_stats(0)}"


if __name__ == "__main__":
    main()
