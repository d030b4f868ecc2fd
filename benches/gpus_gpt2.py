"""GPT-2 of Hugging Face's transformers, as the works of two_gpus.py train and split it with ``--model gpt2``.

It has the shape of gpus_transformer.py's model, and the same batches train it. Its activation is computed in several
steps and its loss in single precision, so more memory comes and goes, in more sizes.
"""

from __future__ import annotations

from typing import Any

import torch
from gpus_transformer import HEADS, LAYERS, LENGTHS, WIDTH, WORDS
from torch import nn
from transformers import GPT2Config
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

CONFIG = GPT2Config(
    vocab_size=WORDS,
    n_positions=LENGTHS[1],
    n_embd=WIDTH,
    n_layer=LAYERS,
    n_head=HEADS,
    attn_implementation="sdpa",
)


class Begin(nn.Module):
    """Words and their places, as numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTHS[1], WIDTH)
        self.dropout = nn.Dropout(CONFIG.embd_pdrop)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return what the first block gets."""
        return self.dropout(self.words(words) + self.places(torch.arange(words.shape[1], device=words.device)))


class Block(nn.Module):
    """One of GPT-2's blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.block = GPT2Block(CONFIG, layer_idx=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what words become."""
        made = self.block(x)
        # Older versions return more beside it.
        return made[0] if isinstance(made, tuple) else made


def end() -> nn.Module:
    """Make what turns the last block's output into a score for each word."""
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False))


def layers(first: int = 0, last: int = LAYERS + 2, device: Any = None) -> nn.Sequential:
    """Make the model, or some of its layers: the words, its blocks, the scores."""
    made = [Begin, *[Block] * LAYERS, end][first:last]
    with torch.device(device):
        return nn.Sequential(*(make() for make in made))


def blocks(model: nn.Sequential) -> list[nn.Module]:
    """Return the model's blocks."""
    return [part for part in model if isinstance(part, Block)]


def loss_of(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return how badly each next word was predicted."""
    return ForCausalLMLoss(scores, words, vocab_size=WORDS)
