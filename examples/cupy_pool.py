"""A CuPy program with CuPy's own memory pool, and the same program with gpupool: peak memory and time side by side.

Requests of all sizes are served on four streams in turn, as a server would. CuPy's own pool keeps the memory that each
stream has freed for that stream; gpupool lets the next stream that needs it reuse it.

Run it with: python examples/cupy_pool.py

It needs CuPy.
"""

import gc
import time
from typing import NamedTuple

import cupy
import gpupool
import numpy as np

STREAMS = 4


class Result(NamedTuple):
    """The peak memory and time of a run, and the sum of what it computed."""

    peak_bytes: int
    seconds: float
    checksum: float


def serve(size, seed):
    """Serve one request on the current stream, and return a number that depends on all of the work."""
    signal = cupy.sin(cupy.arange(size, dtype=cupy.float64) * (1 + seed % 7))
    smooth = (signal[:-2] + signal[1:-1] + signal[2:]) / 3
    ordered = cupy.sort(cupy.abs(smooth))
    return float(ordered[size // 2] + (smooth * smooth).mean())


def work(steps):
    """Serve that many requests, each on the next stream. Nothing here knows which pool the memory is from."""
    sizes = np.random.default_rng(1).integers(1 << 16, 1 << 22, steps)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(STREAMS)]
    checksum = 0.0
    for step, size in enumerate(sizes.tolist()):
        with streams[step % STREAMS]:
            checksum += serve(size, step)
    return checksum


def measure(steps, reserved):
    """Run the program, once its kernels are compiled. `reserved` returns the most memory that the pool has had."""
    serve(1 << 16, 0)
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    checksum = work(steps)
    cupy.cuda.Device().synchronize()
    seconds = time.perf_counter() - start
    gc.collect()
    return Result(reserved(), seconds, checksum)


def compare(steps):
    """Run the program over a new pool of CuPy's, which never gives memory back by itself, and over gpupool."""
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        own = measure(steps, pool.total_bytes)
    pool.free_all_blocks()
    with gpupool.cupy.using():
        gpupool.empty_cache()
        gpupool.reset_peak_stats()
        pooled = measure(steps, lambda: gpupool.memory_stats().peak_reserved_bytes)
    return own, pooled


def main():
    """Print both results."""
    steps = 200
    # The first run compiles the kernels, and is not counted.
    compare(4)
    results = compare(steps)
    print(f"{steps} requests on {STREAMS} streams")
    print(f"{'':<16} {'peak MiB':>9} {'ms':>9}")
    for name, result in zip(("CuPy's own pool", "gpupool"), results, strict=True):
        print(f"{name:<16} {result.peak_bytes / 2**20:>9.0f} {result.seconds * 1e3:>9.1f}")


if __name__ == "__main__":
    main()
