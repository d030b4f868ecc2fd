"""RMM's buffers from gpupool and from RMM's own resources, in one run on one machine, as one JSON object a line.

    python benches/rmm_peers.py [ROUNDS]

One thread and sixteen make ``rmm.DeviceBuffer`` on the default stream: of 1 KiB that go at once (pair), and the random
mix of benches/figures.py. The resources take turns at each work, 5 rounds by default. "gpupool" runs no Python in a
request, where there is a module for this RMM; "gpupool callback" is what is left without one. Times are nanoseconds,
with several threads those of the slowest. The last lines are ratios, the median of the rounds': gpupool's figure to
that of RMM's quickest resource.
"""

import contextlib
import gc
import statistics
import sys
import threading
import time
from collections.abc import Iterator

import gpupool
import rmm
from figures import CALLS, THREADS, Allocate, Free, forget, in_threads, mix, tell

GIB = 1 << 30


def peers() -> dict[str, object]:
    """Return the resources, with memory to start with."""
    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=4 * GIB)
    made = {
        "gpupool": gpupool.rmm.resource(),
        "gpupool callback": rmm.mr.CallbackMemoryResource(gpupool.rmm._allocate, gpupool.rmm._deallocate),
        "pool": pool,
        "arena": rmm.mr.ArenaMemoryResource(rmm.mr.CudaMemoryResource(), arena_size=16 * GIB),
        "async": rmm.mr.CudaAsyncMemoryResource(),
        "binning": rmm.mr.BinningMemoryResource(pool, 18, 22),
    }
    if isinstance(made["gpupool"], rmm.mr.CallbackMemoryResource):
        sys.exit("rmm_peers.py: there is no module for this RMM, so there is nothing new to measure")
    return made


def begin() -> None:
    """Have the thread launch something: without a context each question for its device takes it microseconds."""
    rmm.DeviceBuffer(size=8, mr=rmm.mr.CudaMemoryResource())


def pair(resource: object, threads: int) -> float:
    """Return the nanoseconds for a buffer of 1 KiB that goes at once."""
    buffer = rmm.DeviceBuffer

    def run(index: int, together: threading.Barrier) -> float:
        begin()
        for _ in range(1000):
            buffer(size=1024, mr=resource)
        together.wait()
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            buffer(size=1024, mr=resource)
        return (time.perf_counter_ns() - start) / CALLS

    return round(in_threads(threads, run), 1)


def mixed(resource: object, threads: int) -> float:
    """Return the nanoseconds that a step of the random mix takes."""

    @contextlib.contextmanager
    def peer() -> Iterator[tuple[Allocate, Free]]:
        begin()
        yield lambda nbytes: rmm.DeviceBuffer(size=nbytes, mr=resource), forget

    return mix(peer, threads)


def main() -> None:
    """Measure all."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    resources = peers()
    tell(rmm=rmm.__version__, python=sys.version.split()[0], rounds=rounds)
    ratios = []
    for name, measure in (("pair", pair), ("mix", mixed)):
        for threads in THREADS:
            taken: dict[str, list[float]] = {peer: [] for peer in resources}
            for turn in range(rounds):
                order = list(resources)[turn % len(resources) :] + list(resources)[: turn % len(resources)]
                for peer in order:
                    taken[peer].append(measure(resources[peer], threads))
            for peer, times in taken.items():
                tell(peer=peer, work=name, threads=threads, ns=statistics.median(times), rounds=times)
            own = {peer: times for peer, times in taken.items() if not peer.startswith("gpupool")}
            quickest = min(own, key=lambda peer: statistics.median(own[peer]))
            for peer in ("gpupool", "gpupool callback"):
                each = [mine / other for mine, other in zip(taken[peer], own[quickest], strict=True)]
                ratios.append({"work": name, "threads": threads, "peer": peer, "quickest": quickest, "ratio": each})
    for told in ratios:
        tell(**{**told, "ratio": round(statistics.median(told["ratio"]), 3)})


if __name__ == "__main__":
    # A collection takes longer than a thousand buffers, and falls on the resource that is at work.
    gc.disable()
    main()
