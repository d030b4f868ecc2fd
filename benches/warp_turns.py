"""One of Warp's own samples over gpupool and over Warp's pool, in turns in one process, as one JSON object a line.

    python benches/warp_turns.py [TURNS]

In each turn both allocators do the steps of the sample fem/example_navier_stokes.py, one first after another. Both so
have the same kernels, processors and clocks: between two processes these differ by more than the allocators do. Figures
are milliseconds of a turn's steps: the medians, the quartiles, and the median of the ratios of each turn.
"""

import gc
import statistics
import sys
import time

import gpupool
import warp
from figures import tell

STEPS = 20
# What enables each way.
WAYS = {"warp over gpupool": gpupool.warp.enable, "warp": gpupool.warp.disable}


def steps_of(sample: object) -> float:
    """Return the milliseconds of some steps."""
    warp.synchronize_device("cuda:0")
    start = time.perf_counter()
    for _ in range(STEPS):
        sample.step()
    warp.synchronize_device("cuda:0")
    return (time.perf_counter() - start) * 1e3


def main(turns: int) -> None:
    """Print what each way takes, and the ratio of both."""
    warp.config.quiet = True
    warp.init()
    from warp.examples.fem.example_navier_stokes import Example

    warp.set_module_options({"enable_backward": False})
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with warp.ScopedDevice("cuda:0"):
        sample = Example(quiet=True)
        # Compiles the kernels, and has each allocator take its memory.
        for enable in WAYS.values():
            enable()
            steps_of(sample)
        # A collection takes longer than many steps, and falls on the way that is at work.
        gc.disable()
        for turn in range(turns):
            for way in list(WAYS)[:: -1 if turn % 2 else 1]:
                WAYS[way]()
                # The arrays that live from step to step become this allocator's.
                sample.step()
                times[way].append(steps_of(sample))
            gc.collect()
    for way, figures in times.items():
        lower, median, upper = statistics.quantiles(figures, n=4)
        tell(peer=way, work="program", turns=turns, ms=round(median, 2), quartiles=[round(lower, 2), round(upper, 2)])
    ratios = [one / other for one, other in zip(*times.values(), strict=True)]
    tell(
        work="program",
        ratio=" over ".join(WAYS),
        of_medians=round(statistics.median(times["warp over gpupool"]) / statistics.median(times["warp"]), 4),
        median_of_ratios=round(statistics.median(ratios), 4),
        shorter=sum(ratio < 1 for ratio in ratios),
        turns=turns,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 101)
