"""One process of a work on several GPUs, with one allocator: two_gpus.py starts it and reads the figures it prints.

    python benches/gpus_process.py WORK WAY MODEL RANK RANKS FILE

MODEL is the end of the name of the module whose MODEL is trained. It imports PyTorch, waits for a line to begin,
and prints a JSON object: for each of its GPUs the MiB held at the peak by the driver's count (from the context and
NCCL's communicator on), reserved and live at their peaks by PyTorch's own statistics, and the median milliseconds of a
step. In FILE the processes find each other.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpus_run import GPUPOOL, Place

MIB = 1 << 20
# The seconds between two looks at what the driver has free.
PERIOD = 0.005


@contextmanager
def held(devices: list[Any], most: list[float]) -> Iterator[None]:
    """Fill in the most MiB that the driver gave of each device meanwhile."""
    import torch

    def free() -> list[int]:
        return [torch.cuda.mem_get_info(device)[0] for device in devices]

    is_over, before = threading.Event(), free()
    least = before

    def look() -> None:
        nonlocal least
        while not is_over.wait(PERIOD):
            least = [min(pair) for pair in zip(least, free(), strict=True)]

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        is_over.set()
        looking.join()
        least = [min(pair) for pair in zip(least, free(), strict=True)]
        most[:] = [round((first - last) / MIB, 1) for first, last in zip(before, least, strict=True)]


def meet(rank: int, ranks: int, file: str, device: Any) -> None:
    """Make the communicator of all processes, and use it once."""
    import torch
    import torch.distributed

    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{file}", rank=rank, world_size=ranks, device_id=device
    )
    torch.distributed.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize(device)


def main() -> None:
    """Do the work."""
    work, way, model, number, count, file = sys.argv[1:]
    rank, ranks = int(number), int(count)
    # What is printed elsewhere is not a result.
    results, sys.stdout = sys.stdout, sys.stderr
    import torch
    import torch._dynamo  # The first optimizer imports it.
    from gpus_pipeline import train as train_stages
    from gpus_training import train
    from gpus_words import generate

    trained = importlib.import_module(f"gpus_{model}").MODEL
    if not sys.stdin.readline():
        # Who started it has ended.
        return
    if way == GPUPOOL:
        import gpupool.torch

        gpupool.torch.enable()
    works = {"ddp": train, "fsdp": train, "pipeline": train_stages, "tensor": generate}
    is_alone = work == "pipeline"
    devices = [torch.device("cuda", index) for index in (range(ranks) if is_alone else [rank])]
    for device in reversed(devices):
        torch.cuda.set_device(device)
        torch.cuda.synchronize(device)
    if not is_alone:
        meet(rank, ranks, file, devices[0])
    most: list[float] = []
    with held(devices, most):
        run = works[work](Place(way, rank, ranks, devices, trained), work)
    told = {
        "held_mib": most,
        "reserved_mib": [round(torch.cuda.max_memory_reserved(device) / MIB, 1) for device in devices],
        "live_mib": [round(torch.cuda.max_memory_allocated(device) / MIB, 1) for device in devices],
        **run.figures(),
    }
    print(json.dumps(told), file=results, flush=True)
    if not is_alone:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
