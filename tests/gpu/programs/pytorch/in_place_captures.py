"""A capture that allocates nothing at first is known all the same: the end of another graph does not spoil it."""

import gc
import sys

import cupy
import gpupool
import torch
from waiting import in_thread

MIB = 1 << 20


def main(mode, kind):
    gpupool.torch.enable()
    source, y = torch.ones(MIB, device="cuda"), torch.zeros(MIB, device="cuda")
    first = torch.cuda.Stream()
    with torch.cuda.stream(first):
        # Loads the kernels, which no capture survives.
        (source * 2).add_(1)
    torch.cuda.synchronize()
    pools = gpupool.memory_stats(0).pools
    external = cupy.cuda.Stream(non_blocking=True)
    for number in range(1, 21):
        older, graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(older, stream=first, capture_error_mode=mode):
            result = source * 2
        older.replay()
        # Of a stream on which nothing was allocated.
        stream = torch.cuda.Stream() if kind == "own" else torch.cuda.ExternalStream(external.ptr)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
            y.add_(1)
            del result
            in_thread(older.reset)
            y.add_(1)
            y.mul_(source)
        graph.replay()
        torch.cuda.synchronize()
        assert bool((y == 2 * number).all()), f"graph {number} has computed {y[:4].tolist()}"
        graph.reset()
    del older, graph
    gc.collect()
    torch.cuda.synchronize()
    gpupool.empty_cache()
    left = gpupool.memory_stats(0).pools - pools
    assert left == 0, f"{left} pools of graphs are left"


if __name__ == "__main__":
    main(*sys.argv[1:])
