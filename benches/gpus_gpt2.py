"""GPT-2 of Hugging Face's transformers, as the works of two_gpus.py train and split it with ``--model gpt2``.

It has the shape of gpus_transformer.py's model, and the same batches train it. Its activation is computed in several
steps and its loss in single precision, so more memory comes and goes, in more sizes.
"""

from __future__ import annotations

import torch
from gpus_transformer import HEADS, LAYERS, LENGTHS, WIDTH, WORDS, Begin, Model
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


def begin() -> nn.Module:
    """Make what turns words into what the first block gets."""
    return nn.Sequential(Begin(), nn.Dropout(CONFIG.embd_pdrop))


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


def loss_of(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return how badly each next word was predicted."""
    return ForCausalLMLoss(scores, words, vocab_size=WORDS)


MODEL = Model(begin, Block, loss_of)
