"""What several streams reserve that each take two large blocks in a step, and how long the step takes, with a wait.

    python benches/several_streams.py [TURNS]

As side streams of a pipeline or a recommender's embeddings do. Sizes are new in each step. PyTorch has its own
allocator, that with expandable segments, or gpupool's (``gpupool.torch.enable``), each in a process of its own, in
turns; one JSON object a line. ``mib`` is what the driver has given when all steps are done, beyond the context; the
milliseconds of a step are the mean of the first ten steps, of the second ten, and the median of the last forty.
"""

import random
import statistics
import subprocess
import sys
import time

from figures import tell
from torch_peers import GPUPOOL, OWN, environment_of

# Streams, and the MiB of a block.
ROWS = ((1, 320, 512), (4, 320, 512), (4, 320, 900), (8, 320, 512))
STEPS = 100
SEED = 7


def steps(streams: int, low: int, high: int) -> dict[str, float]:
    """Run all steps of a row, and return what they took."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info()
    sizes, times = random.Random(SEED), []
    on = [torch.cuda.Stream() for _ in range(streams)]
    for _ in range(STEPS):
        begin = time.perf_counter()
        for stream in on:
            nbytes = int(sizes.uniform(low, high) * (1 << 20))
            with torch.cuda.stream(stream):
                first = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
                second = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
                second.copy_(first.fill_(1))
            del first, second
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    left, _ = torch.cuda.mem_get_info()
    return {
        "mib": (before - left) >> 20,
        "first_ms": round(statistics.mean(times[:10]), 2),
        "second_ms": round(statistics.mean(times[10:20]), 2),
        "settled_ms": round(statistics.median(times[-40:]), 2),
    }


def run(way: str) -> None:
    """Measure every row with one allocator, the rows' memory given back between them."""
    import torch

    if way == GPUPOOL:
        import gpupool.torch

        gpupool.torch.enable()
    torch.zeros(1, device="cuda")
    for row in ROWS:
        streams, low, high = row
        tell(peer=way, streams=streams, min_mib=low, max_mib=high, **steps(*row))


def main() -> None:
    """Have the allocators take turns."""
    for _ in range(int(sys.argv[1]) if sys.argv[1:] else 5):
        for way in (*OWN, GPUPOOL):
            subprocess.run([sys.executable, __file__, "--of", way], env=environment_of(way), check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--of"]:
        run(sys.argv[2])
    else:
        main()
