"""A program of Numba kernels, as it is and with its memory from gpupool.

It smooths signals of many lengths in passes that each need a new array, on two streams. Numba calls the driver for
every array, and waits for the GPU when it frees some; gpupool does neither. The results are checked against NumPy.

Run it with: python examples/numba_kernel.py
It needs Numba, for CUDA 13: pip install 'numba-cuda[cu13]'
"""

import json
import subprocess
import sys
import time
import warnings

import gpupool
import numpy as np
from cuda.bindings import driver
from numba import cuda, float32

SIGNALS, PASSES, CHECKS = 200, 8, 4


@cuda.jit
def smooth(out, signal):
    """Average each number and its two neighbours, around the ends."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = (signal[i - 1] + signal[i] + signal[(i + 1) % out.size]) / float32(3)


def smooth_on_cpu(signal):
    """Do on the CPU what the kernels do."""
    for _ in range(PASSES):
        signal = (np.roll(signal, 1) + signal + np.roll(signal, -1)) / np.float32(3)
    return signal


def program():
    """Smooth the signals, and return the largest error, the seconds that it took and the most bytes in use."""

    def free_bytes():
        _, free, _ = driver.cuMemGetInfo()
        return free

    def smoothed(signal, stream):
        array = cuda.to_device(signal, stream=stream)
        for _ in range(PASSES):
            out = cuda.device_array(array.size, np.float32)
            smooth[(out.size + 255) // 256, 256, stream](out, array)
            array = out
        return array

    numbers = np.random.default_rng(42)
    noise = numbers.standard_normal(1 << 24, np.float32)
    streams = [cuda.stream() for _ in range(2)]
    # Compiles and loads the kernel.
    smoothed(noise[:1000], streams[0]).copy_to_host()
    sizes = [int(2 ** numbers.uniform(16, 24)) for _ in range(SIGNALS)]
    free_before, least_free, error = free_bytes(), free_bytes(), 0.0
    seconds = -time.perf_counter()
    for index, size in enumerate(sizes):
        result = smoothed(noise[:size], streams[index % 2])
        least_free = min(least_free, free_bytes())
        if index % (SIGNALS // CHECKS) == 0:
            streams[index % 2].synchronize()
            seconds += time.perf_counter()
            error = max(error, float(abs(result.copy_to_host() - smooth_on_cpu(noise[:size])).max()))
            seconds -= time.perf_counter()
    cuda.synchronize()
    seconds += time.perf_counter()
    return {"error": error, "seconds": seconds, "peak": free_before - least_free}


def main():
    """Run the program in two processes, for Numba chooses its memory once, and print what each took."""
    if sys.argv[1:]:
        warnings.simplefilter("ignore")
        if sys.argv[1] == "gpupool":
            gpupool.numba.enable()
        print(json.dumps(program()))
        return
    results = []
    for memory in ("numba", "gpupool"):
        command = [sys.executable, __file__, memory]
        results.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    own, pooled = results
    print(f"{SIGNALS} signals    Numba alone  with gpupool")
    print(f"seconds        {own['seconds']:>11.3f}  {pooled['seconds']:>12.3f}")
    print(f"peak MiB       {own['peak'] / 2**20:>11.0f}  {pooled['peak'] / 2**20:>12.0f}")
    print(f"largest error  {own['error']:>11.1e}  {pooled['error']:>12.1e}")


if __name__ == "__main__":
    main()
