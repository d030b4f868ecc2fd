"""A graph of PyTorch's over buffers of a MemPool: they are the graph's until its memory is reset."""

import gc

import gpupool
import torch

MIB = 1 << 20


def main():
    torch.empty(1, device="cuda")
    pool = gpupool.MemPool()
    stream = torch.cuda.Stream()
    source = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    # Loads the kernels, which no capture survives.
    with torch.cuda.stream(stream):
        (source + 1).add_(1)
    torch.cuda.synchronize()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream), pool.capture(stream) as memory:
        first, second = gpupool.empty(MIB, stream), gpupool.empty(MIB, stream)
        one, two = (torch.as_tensor(buffer, device="cuda") for buffer in (first, second))
        one.copy_(source)
        one.add_(1)
        two.copy_(one)
        two.mul_(2)

    addresses = first.ptr, second.ptr
    for value in range(20):
        source.fill_(value)
        torch.cuda.synchronize()
        graph.replay()
        # Others use memory meanwhile, and are given none of the graph's.
        others = [gpupool.empty(MIB) for _ in range(20)]
        assert not {other.ptr for other in others} & set(addresses), "the graph's memory was given to others"
        torch.cuda.synchronize()
        assert int(two.sum(dtype=torch.int64)) == 2 * (value + 1) * MIB, f"replay {value} is wrong"
    # What is freed stays the graph's.
    del one, two, first, second, others
    gc.collect()
    with gpupool.use_mem_pool(pool):
        other = gpupool.empty(MIB, stream)
    assert other.ptr not in addresses, "the graph's memory was given to another of its pool"
    reserved = pool.stats().reserved_bytes
    pool.trim()
    assert pool.stats().reserved_bytes >= 2 * MIB, "trim gave the graph's memory back"
    graph.replay()
    torch.cuda.synchronize()
    del graph, other
    memory.reset()
    del memory
    gc.collect()
    pool.trim()
    torch.cuda.synchronize()
    pool.trim()
    assert pool.stats().reserved_bytes == 0, f"of {reserved} bytes some are left: {pool.stats()}"
    assert pool.use_count() == 1, "the graph uses the pool still"


if __name__ == "__main__":
    main()
