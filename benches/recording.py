"""The cost of recording: an allocation and its free from Python, in three events, without and with call stacks.

    python benches/recording.py [--output FILE]

Figures are nanoseconds, medians of rounds in which all variants take turns. ``event`` is what each of the three adds:
stacks are taken twice, for the allocation and for the free.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import gpupool

PAIRS = 20_000
ROUNDS = 15
EVENTS = 3
DEPTHS = (8, 10, 30)
# The context of record_memory_history; False where nothing is recorded.
VARIANTS: dict[str, str | bool | None] = {"off": False, "no stacks": None, "stacks": "all"}


def deep(depth: int, call: Callable[[], float]) -> float:
    """Call from so many Python frames further in."""
    return deep(depth - 1, call) if depth > 1 else call()


def pair(stream: gpupool.Stream) -> float:
    """Return the nanoseconds for one allocation and its free."""
    empty = gpupool.empty
    start = time.perf_counter_ns()
    for _ in range(PAIRS):
        empty(1024, stream)
    return (time.perf_counter_ns() - start) / PAIRS


def figures() -> dict[str, dict[str, float]]:
    """Return the medians for each depth and variant."""
    stream = gpupool.Stream()
    rounds: dict[tuple[int, str], list[float]] = {}
    for _ in range(ROUNDS):
        for depth in DEPTHS:
            for name, context in VARIANTS.items():
                if context is not False:
                    gpupool.record_memory_history(context=context, max_entries=100_000)
                rounds.setdefault((depth, name), []).append(deep(depth - 1, lambda: pair(stream)))
                gpupool.record_memory_history(None)
    medians = {key: statistics.median(times) for key, times in rounds.items()}
    found: dict[str, dict[str, float]] = {}
    for depth in DEPTHS:
        off = medians[depth, "off"]
        found[f"{depth} frames"] = {"off: pair": round(off, 1)}
        for name in list(VARIANTS)[1:]:
            on = medians[depth, name]
            found[f"{depth} frames"] |= {
                f"{name}: pair": round(on, 1),
                f"{name}: event": round((on - off) / EVENTS, 1),
                f"{name}: ratio": round(on / off, 2),
            }
    return found


def main() -> None:
    """Print the figures, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", help="write the figures there as JSON")
    output = parser.parse_args().output
    found = {"runtime": gpupool.runtime(), "python": sys.version.split()[0], "nanoseconds": figures()}
    print(json.dumps(found, indent=2))
    if output:
        with open(output, "w") as file:
            json.dump(found, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
