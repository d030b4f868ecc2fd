"""One of Warp's own samples over gpupool and over Warp's pool, in turns in one process, as one JSON object a line.

    python benches/warp_turns.py [TURNS]

In each turn both allocators do the steps of the sample fem/example_navier_stokes.py, one first after another. Both so
have the same kernels, processors and clocks: between two processes these differ by more than the allocators do. Figures
are milliseconds of a turn's steps: the medians, the quartiles, and the median of the ratios of each turn.
"""

import contextlib
import gc
import statistics
import sys

import gpupool
from figures import tell
from plug_peer import WarpMeasures
from turns import ratio

# What enables each way.
WAYS = {"warp over gpupool": gpupool.warp.enable, "warp": gpupool.warp.disable}


def measure(turns: int) -> dict[str, list[float]]:
    """Return the milliseconds of each turn."""
    warp = WarpMeasures("warp")
    warp.prepare_sample()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    # Each allocator takes its memory.
    for enable in WAYS.values():
        enable()
        warp.steps()
    # A collection takes longer than many steps, and falls on the way that is at work.
    gc.disable()
    for turn in range(turns):
        for way in list(WAYS)[:: -1 if turn % 2 else 1]:
            WAYS[way]()
            # The arrays that live from step to step become this allocator's.
            warp.steps(1)
            times[way].append(warp.steps())
        gc.collect()
    return times


def main(turns: int) -> None:
    """Print what each way takes, and the ratio of both."""
    # What Warp prints is not a result.
    with contextlib.redirect_stdout(sys.stderr):
        times = measure(turns)
    for way, figures in times.items():
        lower, median, upper = statistics.quantiles(figures, n=4)
        tell(peer=way, work="program", turns=turns, ms=round(median, 2), quartiles=[round(lower, 2), round(upper, 2)])
    ours, theirs = times.values()
    tell(
        work="program",
        ratio=" over ".join(WAYS),
        of_medians=round(statistics.median(ours) / statistics.median(theirs), 4),
        median_of_ratios=ratio(ours, theirs),
        shorter=sum(one < other for one, other in zip(ours, theirs, strict=True)),
        turns=turns,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 101)
