"""Logs of a language model's caches of keys and values that grow by a word at each step, in RMM's format.

    python benches/growing_caches.py FOLDER
    GPUPOOL_RUNTIME=host gpupool replay --compare FOLDER/*.csv

Each layer has a cache. At each step it is copied to one that is a word longer, and the old one is freed, as torch.cat
does; beside it live the new word, weights and a result, and in some logs cuBLAS's workspace.
"""

import sys
from pathlib import Path
from typing import NamedTuple

HALF = 2
FIRST_WORDS = 16
WORKSPACE = 32 << 20


class Model(NamedTuple):
    """What the sizes follow from; with a workspace or without."""

    batch: int
    layers: int
    heads: int
    width: int
    steps: int
    has_workspace: bool


MODELS = (
    Model(8, 24, 16, 64, 384, True),
    Model(8, 32, 16, 64, 384, False),
    Model(4, 32, 32, 128, 300, True),
    Model(3, 28, 8, 128, 700, False),
    Model(16, 12, 12, 64, 500, False),
    Model(1, 32, 32, 128, 500, True),
    Model(6, 40, 20, 64, 256, True),
    Model(2, 48, 25, 64, 500, False),
)


class Log:
    """The events of one program."""

    def __init__(self) -> None:
        self.lines = ["Thread,Time,Action,Pointer,Size,Stream"]
        self._blocks = 0

    def allocate(self, nbytes: int) -> tuple[int, int]:
        """Note an allocation, and return the block."""
        self._blocks += 1
        block = self._blocks << 12, nbytes
        self._note("allocate", *block)
        return block

    def free(self, *blocks: tuple[int, int]) -> None:
        """Note that these blocks are freed."""
        for block in blocks:
            self._note("free", *block)

    def _note(self, action: str, address: int, nbytes: int) -> None:
        self.lines.append(f"0,{len(self.lines)},{action},{address:#x},{nbytes},0")


def record(model: Model) -> Log:
    """Return what a program with this model allocates and frees."""
    log, heads = Log(), model.batch * model.heads
    word = 2 * heads * model.width * HALF
    caches = [log.allocate(word * FIRST_WORDS) for _ in range(model.layers)]
    workspace = [log.allocate(WORKSPACE)] if model.has_workspace else []
    for words in range(FIRST_WORDS + 1, FIRST_WORDS + 1 + model.steps):
        for layer, old in enumerate(caches):
            new = log.allocate(word)
            caches[layer] = log.allocate(word * words)
            log.free(old)
            products, weights = log.allocate(heads * words * HALF), log.allocate(heads * words * HALF)
            log.free(products)
            result, total = log.allocate(word // 2), log.allocate(512)
            log.free(weights, total, result, new)
    log.free(*caches, *workspace)
    return log


def main() -> None:
    """Write a log for each model."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        name = "-".join(str(int(part)) for part in model)
        (folder / f"growing_caches-{name}.csv").write_text("\n".join(record(model).lines) + "\n")


if __name__ == "__main__":
    main()
