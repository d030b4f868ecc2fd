"""CuPy, cuda.core and Warp on gpupool's memory and on their own, in one run on one machine, as one JSON object a line.

    python benches/plug_peers.py [cupy] [cuda.core] [warp]

Each way has a process of its own (plug_peer.py). They take turns at every work, some rounds each, in each round on the
same processors, as many as the work has threads. ``pair`` is 1 KiB that is freed at once, ``mix`` the random mix of
benches/figures.py, and ``program`` what examples/cupy_pool.py does: 200 requests on four streams, over a pool that has
nothing yet; of Warp steps of its own sample fem/example_navier_stokes.py. Figures are the median of the rounds:
nanoseconds, of a program milliseconds; with several threads, those of the slowest.

The last lines are ratios, the median of the rounds': gpupool's figure to that of each of the framework's own
allocators, and to the best of them at that work. A framework that is not installed is left out.
"""

import contextlib
import importlib.util
import statistics
import sys

from figures import THREADS, tell
from turns import Peer, ratio, take_turns

# gpupool's way, and the framework's own allocators.
WAYS = {
    "cupy": ("cupy over gpupool", "cupy", "cupy async"),
    "cuda.core": ("cuda.core over gpupool", "cuda.core"),
    "warp": ("warp over gpupool", "warp", "warp without its pool"),
}
ROUNDS, LONG_ROUNDS = 15, 7
# The main thread launches, and the driver has one of its own.
PROCESSORS_OF_A_PROGRAM = 2

Figures = dict[str, list[float]]


def measure(framework: str) -> list[tuple[dict[str, object], Figures]]:
    """Print what each way takes, and return the rounds' figures by work."""
    rows = []
    with contextlib.ExitStack() as stack:
        peers = [Peer("plug_peer.py", way) for way in WAYS[framework]]
        for peer in peers:
            stack.callback(peer.end)

        def row(work: dict[str, object], unit: str, figures: Figures) -> None:
            rows.append((work, figures))
            for way, rounds in figures.items():
                tell(peer=way, **work, **{unit: round(statistics.median(rounds), 1)})

        row({"work": "pair", "threads": 1}, "ns_per_pair", take_turns(peers, ROUNDS, "pair", processors=1))
        for threads in THREADS:
            rounds = ROUNDS if threads == 1 else LONG_ROUNDS
            figures = take_turns(peers, rounds, "mix", threads, processors=threads)
            row({"work": "mix", "threads": threads}, "ns_per_step", figures)
        if framework in ("cupy", "warp"):
            figures = take_turns(peers, LONG_ROUNDS, "program", processors=PROCESSORS_OF_A_PROGRAM)
            row({"work": "program"}, "ms", figures)
    return rows


def tell_ratios(framework: str, rows: list[tuple[dict[str, object], Figures]]) -> None:
    """Print what gpupool's figures are of the framework's own."""
    ours, *own = WAYS[framework]
    for work, figures in rows:
        ratios = {way: ratio(figures[ours], figures[way]) for way in own}
        tell(peer=f"ratio of {ours}", **work, to=ratios, to_best=max(ratios.values()))


def main() -> None:
    """Measure the frameworks that are named, or all."""
    measured = {}
    for framework in sys.argv[1:] or WAYS:
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(framework) is not None:
                measured[framework] = measure(framework)
    for framework, rows in measured.items():
        tell_ratios(framework, rows)


if __name__ == "__main__":
    main()
