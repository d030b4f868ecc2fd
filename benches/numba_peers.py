"""Allocating through cuda.core and through Numba, from gpupool and from the driver, in one run. One JSON object a line.

    python benches/numba_peers.py

Times are nanoseconds. ``mix`` is the one of benches/memory_peers.py: requests of 512 bytes to 8 MiB, 100 to 200 of them
live in each thread. Numba chooses its memory once, so it has two processes. A peer that is not installed is left out.
"""

import contextlib
import gc
import importlib
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable

from memory_peers import nanoseconds, tell

THREADS = (1, 16)
STEPS = 2000
KERNELS = 300

# What a thread allocates with, and what it frees with.
Calls = tuple[Callable[[int], object], Callable[[object], object]]


def in_threads(threads: int, run: Callable[[int, threading.Barrier], float]) -> float:
    """The most that any of the threads answers."""
    together, answers = threading.Barrier(threads, timeout=60), []
    running = [
        threading.Thread(target=lambda index=index: answers.append(run(index, together))) for index in range(threads)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(answers) == threads
    return round(max(answers), 1)


def mix(threads: int, prepare: Callable[[], Calls]) -> float:
    """Nanoseconds a step of a random mix takes each thread."""

    def run(index: int, together: threading.Barrier) -> float:
        allocate, free = prepare()
        numbers, live = random.Random(42 + index), []

        def step() -> None:
            if len(live) < 100 or (len(live) < 200 and numbers.random() < 0.5):
                live.append(allocate(int(2 ** numbers.uniform(9, 23))))
            else:
                place = numbers.randrange(len(live))
                live[place], live[-1] = live[-1], live[place]
                free(live.pop())

        for _ in range(500):
            step()
        together.wait()
        start = time.perf_counter_ns()
        for _ in range(STEPS):
            step()
        elapsed = time.perf_counter_ns() - start
        for block in live:
            free(block)
        return elapsed / STEPS

    return in_threads(threads, run)


def cuda_core_figures() -> None:
    """cuda.core's buffers from its own resource and from gpupool's, and the driver's calls that its own makes."""
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
        for threads in THREADS:
            tell(peer=name, work="mix", threads=threads, ns_per_step=mix(threads, prepare))


def numba_figures(peer: str) -> None:
    """Numba's arrays with the memory manager of this process, alone and under kernels that outlive them."""
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
    for threads in THREADS:
        tell(
            peer=peer, work="mix", threads=threads, ns_per_step=mix(threads, lambda: (device_array, lambda array: None))
        )

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

        figure = in_threads(threads, run)
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
        with contextlib.suppress(ImportError):
            importlib.import_module("cuda.core")
            cuda_core_figures()
        with contextlib.suppress(ImportError):
            importlib.import_module("numba_cuda")
            for setting in ("--numba", "--numba-gpupool"):
                subprocess.run([sys.executable, __file__, setting], check=True)


if __name__ == "__main__":
    # A collection takes longer than a thousand steps, and falls on whoever is at work.
    gc.disable()
    main()
