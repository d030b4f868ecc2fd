"""What the works of two_gpus.py have in common: where a process stands, and what its steps took."""

from __future__ import annotations

import statistics
import time
from typing import Any

GPUPOOL, EXPANDABLE = "gpupool", "expandable segments"


class Run:
    """What a work's steps took, and what they computed."""

    def __init__(self, warm_up: int) -> None:
        self._warm_up = warm_up
        self._times: list[float] = []
        self.tokens = 0
        # Compared between the allocators: the last loss, or a number made of all words.
        self.result: float = 0
        self.more: dict[str, object] = {}

    def step(self, started: float, tokens: int) -> None:
        """Note a step that ends now."""
        self._times.append((time.perf_counter() - started) * 1e3)
        self.tokens += tokens

    def figures(self) -> dict[str, object]:
        """Return what is printed."""
        times = self._times[self._warm_up :] or self._times
        told = {"steps": len(times), "step_ms": round(statistics.median(times), 3), "sum_ms": round(sum(times), 1)}
        return {**told, "tokens": self.tokens, "result": self.result, **self.more}


class Place:
    """Where a process stands among the others, its GPUs, and the model that is trained."""

    def __init__(self, way: str, rank: int, ranks: int, devices: list[Any], model: Any) -> None:
        self.way, self.rank, self.ranks, self.devices, self.model = way, rank, ranks, devices, model

    def synchronize(self) -> None:
        """Wait until the work of its GPUs is done."""
        import torch

        for device in self.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
