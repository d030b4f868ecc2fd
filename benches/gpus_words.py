"""Generation of words by a model whose layers are split over the GPUs, a process for each: a part of two_gpus.py.

Each process has its heads of the attention and its part of the linear layers, and what they make of a word is summed
over the processes twice a layer. The sums are made in memory that is registered with NCCL: on gpupool in a pool with
``no_split``, on PyTorch's own allocator, whose expandable segments cannot be registered, in a pool of ``ncclMemAlloc``
or, where PyTorch refuses that for want of multicast, in one with ``no_split``. `registered` says in which. Caches of
keys and values grow with each word.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed
from gpus_run import GPUPOOL, Place, Run
from torch import nn

WORDS, WIDTH, HEADS, LAYERS = 32000, 2048, 16, 24
# Sentences, words of them that are given, words that are generated.
BATCHES = ((24, 512, 96), (40, 256, 96), (12, 1000, 96), (32, 640, 96), (20, 384, 96), (48, 500, 96))
WARM_UP = 48


class Sums:
    """Memory in which what all processes made is summed."""

    def __init__(self, place: Place, numbers: int) -> None:
        device = place.devices[0]
        self._pool: torch.cuda.MemPool | None = None
        # By what, or why not.
        self.registered = ""
        for name, pool in self._pools(place):
            try:
                made = pool()
                with torch.cuda.use_mem_pool(made):
                    self._memory = torch.empty(numbers, device=device, dtype=torch.bfloat16)
                self._backend.register_mem_pool(made)
            except Exception as error:
                self.registered += f"not by {name}: {error!r:.300} "
            else:
                self._pool, self.registered = made, name
                return
        self._memory = torch.empty(numbers, device=device, dtype=torch.bfloat16)

    def _pools(self, place: Place) -> list[tuple[str, Callable[[], torch.cuda.MemPool]]]:
        device = place.devices[0]
        if device.type != "cuda":
            return []
        self._backend = torch.distributed.group.WORLD._get_backend(device)
        never_moved = "no_split", lambda: torch.cuda.MemPool(no_split=True)
        by_nccl = "ncclMemAlloc", lambda: torch.cuda.MemPool(self._backend.mem_allocator)
        return [never_moved] if place.way == GPUPOOL else [by_nccl, never_moved]

    def of_product(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the sum of all processes' products."""
        rows = x.flatten(0, -2)
        made = self._memory[: rows.shape[0] * weights.shape[1]].view(rows.shape[0], -1)
        torch.mm(rows, weights, out=made)
        torch.distributed.all_reduce(made)
        return made.view(*x.shape[:-1], -1)

    def close(self) -> None:
        """Register it no more, before its memory goes."""
        if self._pool:
            self._backend.deregister_mem_pool(self._pool)
        del self._memory
        self._pool = None


class Layer:
    """A process's part of a layer."""

    def __init__(self, ranks: int, device: torch.device) -> None:
        self._heads = HEADS // ranks

        def weights(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, device=device, dtype=torch.bfloat16) * rows**-0.5

        part, wide = WIDTH // ranks, 4 * WIDTH // ranks
        self._attend, self._attended = weights(WIDTH, 3 * part), weights(part, WIDTH)
        self._widen, self._narrow = weights(WIDTH, wide), weights(wide, WIDTH)
        self._keys: torch.Tensor | None = None
        self._values: torch.Tensor | None = None

    def forget(self) -> None:
        """Begin with other sentences."""
        self._keys = self._values = None

    def __call__(self, x: torch.Tensor, sums: Sums) -> torch.Tensor:
        """Return what words become, given those before."""
        parts = (nn.functional.layer_norm(x, (WIDTH,)) @ self._attend).unflatten(-1, (3, self._heads, -1))
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        if self._keys is None or self._values is None:
            self._keys, self._values = keys.contiguous(), values.contiguous()
        else:
            self._keys = torch.cat([self._keys, keys], dim=2)
            self._values = torch.cat([self._values, values], dim=2)
        seen = nn.functional.scaled_dot_product_attention(
            queries, self._keys, self._values, is_causal=queries.shape[2] > 1
        )
        x = x + sums.of_product(seen.transpose(1, 2).flatten(2), self._attended)
        wide = nn.functional.gelu(nn.functional.layer_norm(x, (WIDTH,)) @ self._widen)
        return x + sums.of_product(wide, self._narrow)


@torch.inference_mode()
def generate(place: Place, work: str, batches: tuple[tuple[int, int, int], ...] = BATCHES) -> Run:
    """Generate words for some batches of sentences."""
    device = place.devices[0]
    # cuDNN's attention plans anew for each length of a cache, which takes longer than all else of a step.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(0)
    # The same in all processes.
    embedding = torch.randn(WORDS, WIDTH, device=device, dtype=torch.bfloat16)
    torch.manual_seed(1 + place.rank)
    layers = [Layer(place.ranks, device) for _ in range(LAYERS)]
    sums = Sums(place, max(sentences * given for sentences, given, _ in batches) * WIDTH)
    run = Run(WARM_UP)
    run.more["registered"] = sums.registered
    chance = torch.Generator().manual_seed(5)
    # What the words are, in one number.
    digest = 0
    for sentences, given, generated in batches:
        for layer in layers:
            layer.forget()
        words = torch.randint(WORDS, (sentences, given), generator=chance).to(device)
        for _ in range(generated):
            place.synchronize()
            started = time.perf_counter()
            x = embedding[words]
            for layer in layers:
                x = layer(x, sums)
            scores = nn.functional.layer_norm(x[:, -1], (WIDTH,)) @ embedding.T
            words = scores.float().argmax(-1, keepdim=True)
            # A server looks for sentences that end here.
            found = words.flatten().tolist()
            # All processes have the same.
            run.step(started, 0 if place.rank else sentences)
            digest = (31 * digest + sum(number * word for number, word in enumerate(found, 1))) % (1 << 31)
    run.result = digest
    place.synchronize()
    sums.close()
    return run
