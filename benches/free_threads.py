"""What gpupool's calls take on several threads of a free-threaded Python, each as JSON, one object a line.

    python3.14t benches/free_threads.py [ROUNDS]

Every thread allocates 1 KiB and frees it, or asks for a handle, over and over, on a stream of its own or on one that
all share. Times are nanoseconds for a pair, or a handle, on the slowest thread, the median of the rounds; the last
lines are the ratios of 16 threads to one, of which no more than 2.5 is wanted. With the GIL every thread waits for the
others.
"""

import statistics
import sys
import threading
import time
from collections.abc import Callable

import gpupool
from figures import in_threads, interpreter, tell

THREADS = 1, 2, 4, 8, 16
CALLS = 200_000
ROUNDS = 5


def pair(stream: gpupool.Stream) -> Callable[[], object]:
    """Return what allocates, and frees at once."""
    empty = gpupool.empty
    return lambda: empty(1024, stream)


def handle(stream: gpupool.Stream) -> Callable[[], object]:
    """Return what asks for a handle."""
    pool = gpupool.simulated if gpupool.runtime() == "host" else gpupool.cublas
    get = pool.handle
    return lambda: get(stream)


def slowest(call: Callable[[gpupool.Stream], Callable[[], object]], streams: list[gpupool.Stream]) -> float:
    """Return the nanoseconds of a call on the slowest thread, with a thread for each stream."""

    def work(index: int, together: threading.Barrier) -> float:
        run = call(streams[index])
        for _ in range(1000):
            run()
        together.wait()
        start = time.perf_counter()
        for _ in range(CALLS):
            run()
        return (time.perf_counter() - start) / CALLS * 1e9

    return in_threads(len(streams), work)


def main() -> None:
    """Measure, and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    shared = gpupool.Stream()
    # Once all is imported that a call needs.
    tell(**interpreter(), runtime=gpupool.runtime())
    own = [gpupool.Stream() for _ in range(max(THREADS))]
    for name, call in (("pair", pair), ("handle", handle)):
        for whose in ("own", "shared"):
            figures = {}
            for count in THREADS:
                streams = own[:count] if whose == "own" else [shared] * count
                figures[count] = statistics.median(slowest(call, streams) for _ in range(rounds))
                tell(work=name, streams=whose, threads=count, ns=round(figures[count], 1))
            ratio = round(figures[max(THREADS)] / figures[1], 3)
            tell(work=name, streams=whose, **{"16 threads over 1": ratio})


if __name__ == "__main__":
    main()
