"""torch.cuda.MemPool with gpupool enabled after the first tensor: it is a pool of gpupool's."""

import gc
import sys

import gpupool
import late
import torch
from errors import assert_says, raised
from late import MIB, all_are, filled, in_16_threads, totals

late.enable()


def is_in(tensor, segments):
    places = [(segment["address"], segment["total_size"]) for segment in segments]
    return any(start <= tensor.data_ptr() < start + size for start, size in places)


def keep_memory_apart():
    pools, pool = totals().pools, torch.cuda.MemPool()
    assert totals().pools == pools + 1, "it is no pool of gpupool's"
    assert pool.use_count() == 1, pool.use_count()
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2, pool.use_count()
        inside = filled(1)
    outside = filled(2)
    assert is_in(inside, pool.snapshot()), "the tensor is not in the pool's snapshot"
    assert not is_in(outside, pool.snapshot()), "a tensor from outside is in the pool's snapshot"
    assert all(tuple(segment["segment_pool_id"]) == tuple(pool.id) for segment in pool.snapshot()), pool.snapshot()
    address = inside.data_ptr()
    del inside
    others = [filled(3) for _ in range(20)]
    assert address not in {other.data_ptr() for other in others}, "the pool's memory was given to others"
    with torch.cuda.use_mem_pool(pool):
        again = filled(4)
    assert again.data_ptr() == address, "the pool does not use its memory again"
    del pool
    gc.collect()
    assert all_are(again, 4), "a tensor lost its memory with its pool"
    del again
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert totals().pools == pools, f"the pool is left: {totals()}"


def are_gpupools():
    ours = gpupool.MemPool(limit=64 * MIB)
    pool = gpupool.torch.mem_pool(ours)
    assert isinstance(pool, torch.cuda.MemPool)
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(1)
        assert pool.use_count() == ours.use_count() == 2, (pool.use_count(), ours.use_count())
        assert_says(raised(torch.OutOfMemoryError, filled, 2, 40 * MIB), "limit is 64.0 MiB")
    live = ours.stats().live_bytes
    assert 4 * MIB <= live < 5 * MIB, f"the pool has {live} bytes live, where there is a tensor of 4 MiB"
    assert is_in(tensor, pool.snapshot()), "the tensor is not in the pool's snapshot"
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor + 1
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=pool.id, stream=stream):
        result = tensor + 1
    graph.replay()
    torch.cuda.synchronize()
    assert all_are(result, 2)
    assert is_in(result, ours.snapshot()), "the graph's memory is not the pool's"
    # The pool outlives PyTorch's name for it, and the other way round.
    del pool
    gc.collect()
    graph.replay()
    torch.cuda.synchronize()
    assert all_are(result, 2)


def serve_a_thread_each():
    pools = [torch.cuda.MemPool() for _ in range(16)]

    def work(number):
        for step in range(30):
            with torch.cuda.use_mem_pool(pools[number]):
                tensor = filled(number + step, 1000 * (number + 1))
            assert all_are(tensor, number + step), f"a tensor of thread {number} has other values"
        assert is_in(tensor, pools[number].snapshot()), "a tensor is in another pool"

    in_16_threads(work)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
