"""Training with a stage of the model on each GPU, in one process with a thread for each: a part of two_gpus.py.

The batch of a step is cut into parts. A stage runs forward as many of them as there are stages behind it, then one
forward and one backward in turn (1F1B); activations go to the next GPU and gradients come back, by copies of PyTorch's
from GPU to GPU.
"""

from __future__ import annotations

import queue
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch
from gpus_run import Place, Run
from gpus_transformer import LAYERS, LossOf, Model, batches, optimizer_of
from torch import nn

STEPS, WARM_UP = 40, 10
PARTS = 4
# Sentences of a part.
SENTENCES = (2, 7)
# Seconds after which a stage gives up on another one.
PATIENCE = 60


class Link:
    """What goes from one stage to the next one, and back."""

    def __init__(self) -> None:
        self.forward: queue.Queue[torch.Tensor] = queue.Queue()
        self.back: queue.Queue[torch.Tensor] = queue.Queue()


class Stage:
    """Some blocks of the model on one GPU, what its loss is, and the links to its neighbours."""

    def __init__(
        self, model: nn.Module, loss_of: LossOf, device: torch.device, before: Link | None, after: Link | None
    ) -> None:
        self._loss_of, self._device, self._before, self._after = loss_of, device, before, after
        self._model = model
        self._optimizer = optimizer_of(self._model)
        self._open: list[tuple[torch.Tensor, torch.Tensor]] = []

    def step(self, parts: list[torch.Tensor], ahead: int) -> float:
        """Train on a batch that is given as parts; return the sum of the losses, which the last stage has."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        losses: list[torch.Tensor] = []
        for number, words in enumerate(parts):
            self._forward(words, losses)
            if number >= ahead:
                self._backward()
        while self._open:
            self._backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(sum(losses)) if losses else 0.0

    def _forward(self, words: torch.Tensor, losses: list[torch.Tensor]) -> None:
        given = words.to(self._device)
        if self._before:
            given = self._before.forward.get(timeout=PATIENCE).to(self._device, non_blocking=True).requires_grad_()
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            made = self._model(given)
            if not self._after:
                made = self._loss_of(made, words.to(self._device)) / PARTS
                losses.append(made.detach())
        self._open.append((given, made))
        if self._after:
            self._after.forward.put(made.detach())

    def _backward(self) -> None:
        given, made = self._open.pop(0)
        # Of a loss it is one.
        gradient = self._after.back.get(timeout=PATIENCE).to(self._device, non_blocking=True) if self._after else None
        made.backward(gradient)
        if self._before:
            assert given.grad is not None
            self._before.back.put(given.grad)


def stages_of(model: Model, devices: list[torch.device]) -> list[Stage]:
    """Cut a model into a stage for each GPU."""
    cuts = [(LAYERS + 2) * number // len(devices) for number in range(len(devices) + 1)]
    links: list[Any] = [None, *(Link() for _ in devices[1:]), None]
    return [
        Stage(model.layers(first, last, device), model.loss_of, device, before, after)
        for device, (first, last), (before, after) in zip(devices, pairwise(cuts), pairwise(links), strict=True)
    ]


def train(place: Place, work: str, steps: int = STEPS) -> Run:
    """Train, a thread for each stage."""
    torch.manual_seed(0)
    stages = stages_of(place.model, place.devices)
    run = Run(WARM_UP)
    with ThreadPoolExecutor(len(stages)) as threads:
        parts_of_all = [*batches(steps * PARTS, 5, "cpu", SENTENCES)]
        for start in range(0, len(parts_of_all), PARTS):
            parts = parts_of_all[start : start + PARTS]
            place.synchronize()
            started = time.perf_counter()
            running = [
                threads.submit(stage.step, parts, len(stages) - 1 - number) for number, stage in enumerate(stages)
            ]
            losses = [each.result() for each in running]
            place.synchronize()
            run.step(started, sum(part.numel() for part in parts))
    run.result = round(losses[-1], 5)
    return run
