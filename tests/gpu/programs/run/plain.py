"""A program of PyTorch's that does not know of gpupool: batches of varying sizes, after children that were forked."""

import multiprocessing
import sys

import torch


def work(device="cuda"):
    total = 0.0
    for size in range(64, 1024, 64):
        batch = torch.randn(size, 4096, device=device)
        total += float((batch @ batch.T).trace())
    return total


if __name__ == "__main__":
    method = sys.argv[1]
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert all(total > 0 for total in pool.map(work, ["cuda"] * 4))
    assert work() > 0
    print(torch.cuda.max_memory_allocated() > 0, "gpupool" in sys.modules)
