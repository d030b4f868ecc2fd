"""Training on several GPUs with a process for each, by DDP or by FSDP2: a part of two_gpus.py."""

from __future__ import annotations

import time

import torch
from gpus_run import Place, Run
from gpus_transformer import batches, optimizer_of
from torch import nn
from torch.distributed.fsdp import fully_shard

STEPS, WARM_UP = 60, 15


def distributed(place: Place, model: nn.Module) -> nn.Module:
    """Return the model with a copy in each process."""
    device = place.devices[0]
    return nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)


def sharded(place: Place, model: nn.Module) -> nn.Module:
    """Return the model with a part of each parameter in each process."""
    for block in place.model.blocks(model):
        fully_shard(block)
    return fully_shard(model)


SPREAD = {"ddp": distributed, "fsdp": sharded}


def train(place: Place, work: str, steps: int = STEPS) -> Run:
    """Train on sentences of this process's own."""
    torch.manual_seed(0)
    device = place.devices[0]
    model = SPREAD[work](place, place.model.layers(device=device))
    optimizer = optimizer_of(model)
    # Dropout is each process's own.
    torch.manual_seed(1 + place.rank)
    run = Run(WARM_UP)
    for words in batches(steps, 5 + place.rank, device):
        place.synchronize()
        started = time.perf_counter()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = place.model.loss_of(model(words), words)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        place.synchronize()
        run.step(started, words.numel())
    run.result = round(float(loss.detach()), 5)
    return run
