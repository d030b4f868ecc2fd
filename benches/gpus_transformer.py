"""A transformer that predicts the next word, of torch.nn alone, as the works of two_gpus.py train and split it.

It has GPT-2's smallest shape. Batches have as many sentences, and these as many words, as a generator says that each
process seeds: so both allocators get the same requests, and few sizes come twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

WORDS, WIDTH, HEADS, LAYERS = 50257, 768, 12, 12
LENGTHS, BATCHES = (64, 1024), (2, 13)
DROPOUT, LEARNING_RATE = 0.1, 1e-4

LossOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """Attention to the words before, and two linear layers."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self._heads = heads
        self.before_attention, self.before_linear = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.linear = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what each word becomes."""
        parts = self.queries_keys_values(self.before_attention(x)).unflatten(-1, (3, self._heads, -1))
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(queries, keys, values, dropout_p=DROPOUT, is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.linear(self.before_linear(x)))


class Begin(nn.Module):
    """Words and their places, as numbers."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTHS[1], width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return what the first block gets."""
        return self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))


def end(width: int = WIDTH) -> nn.Module:
    """Make what turns the last block's output into a score for each word."""
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False))


def loss_of(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return how badly each next word was predicted."""
    return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), words[:, 1:].flatten())


class Model:
    """How a model is made: what it begins with, its blocks, and its loss."""

    def __init__(self, begin: Callable[[], nn.Module], block: type[nn.Module], loss_of: LossOf) -> None:
        self._begin, self._block, self.loss_of = begin, block, loss_of

    def layers(self, first: int = 0, last: int = LAYERS + 2, device: Any = None) -> nn.Sequential:
        """Make it, or some of its layers: the words, its blocks, the scores."""
        made = [self._begin, *[self._block] * LAYERS, end][first:last]
        with torch.device(device):
            return nn.Sequential(*(make() for make in made))

    def blocks(self, made: nn.Sequential) -> list[nn.Module]:
        """Return the blocks among its layers."""
        return [part for part in made if isinstance(part, self._block)]


MODEL = Model(Begin, Block, loss_of)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Make what trains a model."""
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)


def batches(count: int, seed: int, device: Any, most: tuple[int, int] = BATCHES) -> Iterator[torch.Tensor]:
    """Yield so many batches of words, the same for each seed."""
    chance = torch.Generator().manual_seed(seed)
    for _ in range(count):
        length, batch = (int(torch.randint(*sizes, (1,), generator=chance)) for sizes in (LENGTHS, most))
        yield torch.randint(WORDS, (batch, length), generator=chance).to(device)
