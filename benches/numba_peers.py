"""Allocating through cuda.core and Numba, from gpupool and from the driver, in one run, as one JSON object a line.

    python benches/numba_peers.py

Times are nanoseconds. ``mix`` is the one of benches/figures.py: requests of 512 bytes to 8 MiB, 100 to 200 of them live
in each thread. Numba chooses its memory once, so it has two processes. A peer that is not installed is left out.
"""

import gc
import importlib
import random
import subprocess
import sys
import threading
import time
import warnings
from contextlib import nullcontext

from figures import THREADS, Allocate, Free, forget, in_threads, measured, nanoseconds, tell, tell_mix

KERNELS = 300

# The functions that a thread allocates with and frees with.
Calls = tuple[Allocate, Free]


def cuda_core_figures() -> None:
    """Print what cuda.core's buffers take from its own resource and from gpupool's, and what driver calls take."""
    import gpupool
    from cuda.bindings import driver
    from cuda.core import Device, DeviceMemoryResource

    device = Device(0)
    device.set_current()
    resources = {"cuda.core": DeviceMemoryResource(device), "cuda.core, gpupool": gpupool.cuda_core.MemoryResource(0)}

    def with_resource(resource: object) -> Calls:
        device = Device(0)
        device.set_current()
        stream = device.create_stream()
        return lambda nbytes: resource.allocate(nbytes, stream=stream), lambda buffer: buffer.close()

    def with_driver() -> Calls:
        device = Device(0)
        device.set_current()
        stream = device.create_stream()
        handle = stream.handle

        def allocate(nbytes: int) -> object:
            status, pointer = driver.cuMemAllocAsync(nbytes, handle)
            if status:
                raise MemoryError(status)
            return pointer

        # The stream lives as long as what frees on it.
        return allocate, lambda pointer, _stream=stream: driver.cuMemFreeAsync(pointer, handle)

    peers = {name: lambda resource=resource: with_resource(resource) for name, resource in resources.items()}
    for name, prepare in {**peers, "cuMemAllocAsync": with_driver}.items():
        allocate, free = prepare()
        tell(peer=name, work="allocate(1024)", ns=nanoseconds("free(allocate(1024))", allocate=allocate, free=free))
        tell_mix(name, lambda prepare=prepare: nullcontext(prepare()))


def numba_figures(peer: str) -> None:
    """Print what Numba's arrays take with this memory manager, alone and under kernels that outlive them."""
    import numpy as np
    from cuda.bindings import driver
    from numba import cuda

    def device_array(nbytes: int) -> object:
        return cuda.device_array(nbytes, np.uint8)

    @cuda.jit
    def fill(out, value):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = value

    def free_bytes() -> int:
        return driver.cuMemGetInfo()[1]

    warm = device_array(1024)
    fill[4, 256](warm, 1)
    cuda.synchronize()
    tell(peer=peer, work="device_array(1024)", ns=nanoseconds("device_array(1024)", device_array=device_array))
    tell_mix(peer, lambda: nullcontext((device_array, forget)))

    for threads in THREADS:
        cuda.synchronize()
        cuda.current_context().memory_manager.deallocations.clear()
        before, least = free_bytes(), []

        def run(index: int, together: threading.Barrier, least: list[int] = least) -> float:
            numbers, stream = random.Random(42 + index), cuda.stream()
            together.wait()
            start = time.perf_counter_ns()
            for step in range(KERNELS):
                out = device_array(int(2 ** numbers.uniform(16, 25)))
                fill[(out.size + 255) // 256, 256, stream](out, step % 100)
                if step % 50 == 49:
                    least.append(free_bytes())
            stream.synchronize()
            return (time.perf_counter_ns() - start) / KERNELS

        figure = round(in_threads(threads, run), 1)
        peak = (before - min(least)) >> 20
        tell(peer=peer, work="a kernel on a new array", threads=threads, ns_per_step=figure, peak_mib=peak)


def main() -> None:
    """Measure everything that can be measured here."""
    warnings.simplefilter("ignore")
    if sys.argv[1:] == ["--numba"]:
        numba_figures("numba")
    elif sys.argv[1:] == ["--numba-gpupool"]:
        import gpupool

        gpupool.numba.enable()
        numba_figures("numba, gpupool")
    else:
        with measured("cuda.core"):
            cuda_core_figures()
        with measured("numba"):
            importlib.import_module("numba_cuda")
            for setting in ("--numba", "--numba-gpupool"):
                subprocess.run([sys.executable, __file__, setting], check=True)


if __name__ == "__main__":
    # A collection takes longer than a thousand steps, and falls on the peer that is at work.
    gc.disable()
    main()
