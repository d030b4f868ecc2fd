"""CuPy over gpupool with CUPY_CUDA_PER_THREAD_DEFAULT_STREAM: each thread's default stream is its own."""

import threading
from concurrent.futures import ThreadPoolExecutor

import cupy
import gpupool
from waiting import LONG


def main():
    gpupool.cupy.enable()
    together = threading.Barrier(16, timeout=LONG)

    def work(number):
        together.wait()
        for turn in range(50):
            array = cupy.full(100_000, number, dtype=cupy.int64)
            stream = array.data.mem.stream
            assert stream == 2, f"the array is on stream {stream}, not the thread's own"
            assert int((array * 2 + turn).sum()) == (2 * number + turn) * 100_000, "an array has wrong values"
        # Freed by another thread than the one whose stream it is.
        return array

    with ThreadPoolExecutor(16) as executor:
        arrays = list(executor.map(work, range(16)))
    sums = [int(array.sum()) for array in arrays]
    assert sums == [number * 100_000 for number in range(16)], f"arrays of threads have the sums {sums}"
    del arrays
    cupy.cuda.Device().synchronize()
    gpupool.empty_cache()
    live = gpupool.memory_stats().live_blocks
    assert live == 0, f"{live} blocks are alive"


if __name__ == "__main__":
    main()
