"""What programs ask of pinned memory: the sizes, in order, of a data loader's batches and of a model that is offloaded.

A program is a list of steps. A number allocates so many bytes; ("free", n) frees what the n-th request got.
"""

import random

Step = int | tuple[str, int]


def loader() -> list[Step]:
    """Return what a loader of token sequences asks for: eight batches are ready at a time.

    A batch has tokens, mask, positions and labels, and is padded to its longest sequence, whose length is log-normal,
    as in text of mixed sources.
    """
    numbers, steps, ready, count = random.Random(1), [], [], 0
    for _ in range(400):
        longest = max(min(8192, int(numbers.lognormvariate(6, 1))) for _ in range(256))
        batch = []
        # Tokens, positions and labels are int64, the mask a byte each.
        for width in (8, 1, 8, 8):
            steps.append(256 * longest * width)
            batch.append(count)
            count += 1
        ready.append(batch)
        if len(ready) > 8:
            steps += [("free", number) for number in ready.pop(0)]
    return steps + [("free", number) for batch in ready for number in batch]


def images() -> list[Step]:
    """Return what a loader of images of many resolutions asks for, as uint8, with labels: six batches are ready."""
    numbers, steps, ready, count = random.Random(2), [], [], 0
    for _ in range(300):
        side = 32 * numbers.randint(4, 20)
        steps += [64 * 3 * side * side, 64 * 8]
        ready.append((count, count + 1))
        count += 2
        if len(ready) > 6:
            steps += [("free", number) for number in ready.pop(0)]
    return steps + [("free", number) for batch in ready for number in batch]


def offload() -> list[Step]:
    """Return what an offload of the optimizer's state asks for, of a language model of 1.1 thousand million parameters.

    It has 22 layers, 2048 wide with 5632 inside and 256 for keys and values, and a vocabulary of 32000. Three float32
    copies of each tensor stay; the gradients of a layer, in bfloat16, are there while the next layer's come.
    """
    layer = [2048 * 2048, 256 * 2048, 256 * 2048, 2048 * 2048, 5632 * 2048, 5632 * 2048, 2048 * 5632, 2048, 2048]
    tensors = [32000 * 2048, *(layer * 22), 2048, 32000 * 2048]
    steps: list[Step] = [4 * numbers for numbers in tensors for _ in range(3)]
    count, former = len(steps), []
    for _ in range(3):
        for _ in range(22):
            steps += [2 * numbers for numbers in layer]
            steps += [("free", number) for number in former]
            former = list(range(count, count + len(layer)))
            count += len(layer)
    return steps


PROGRAMS = {"data loader of text": loader, "data loader of images": images, "offload": offload}


def peak_of(steps: list[Step]) -> int:
    """Return the most bytes that a program has asked for and not freed."""
    live, sizes, peak = 0, [], 0
    for step in steps:
        if isinstance(step, tuple):
            live -= sizes[step[1]]
        else:
            sizes.append(step)
            live += step
            peak = max(peak, live)
    return peak
