"""What it costs to be watched: allocations of a program that never has gpupool, in turns with and without the library.

Usage: python benches/watch.py [TURNS]
"""

import ctypes
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import gpupool
from figures import tell

LIBRARY = Path(gpupool.__file__).parent / "lib/libgpupool_watch.so"
PAIRS = 300
SIZES = (4 << 10, 2 << 20, 64 << 20)


def main(turns: int) -> None:
    """Print each turn's time of a pair of `cuMemAlloc` and `cuMemFree`, and the median of the differences of turns."""
    figures: dict[tuple[str, int], list[float]] = {}
    there = sorted(os.sched_getaffinity(0))
    for turn in range(turns):
        # One for the program and one for the driver's thread, the same for both: some are slower than others.
        os.sched_setaffinity(0, {there[2 * turn % len(there)], there[(2 * turn + 1) % len(there)]})
        # Who begins changes, for a machine's clock may.
        for how in ("alone", "watched")[:: 1 if turn % 2 else -1]:
            environment = {**os.environ, "LD_PRELOAD": str(LIBRARY) if how == "watched" else ""}
            done = subprocess.run(
                [sys.executable, __file__, "measure"], env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
            for size, nanoseconds in zip((*SIZES, 0), map(float, done.stdout.split()), strict=True):
                figures.setdefault((how, size), []).append(nanoseconds)
    for size in (*SIZES, 0):
        alone, watched = figures["alone", size], figures["watched", size]
        more = [with_it - without for with_it, without in zip(watched, alone, strict=True)]
        ns = {"alone": statistics.median(alone), "watched": statistics.median(watched), "more": statistics.median(more)}
        work = {"work": "pair", "size": size} if size else {"work": "program"}
        tell(**work, ns={name: round(value) for name, value in ns.items()}, turns={"alone": alone, "watched": watched})


def measure() -> None:
    """Print the median times of a pair of each size, and that of all of them with the program's begin, in ns."""
    begun = time.perf_counter_ns()
    driver, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    for size in SIZES:
        times = []
        for _ in range(PAIRS):
            start = time.perf_counter_ns()
            status = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
            driver.cuMemFree_v2(address)
            times.append(time.perf_counter_ns() - start)
            assert status == 0, f"cuMemAlloc answered {status}"
        print(statistics.median(times))
    print(time.perf_counter_ns() - begun)


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        measure()
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 60)
