"""One way of having CuPy's, cuda.core's or Warp's memory, in a process of its own, which plug_peers.py asks in turn.

python benches/plug_peer.py WAY
"""

import contextlib
import gc
import sys
import time
import timeit
from collections.abc import Iterator
from pathlib import Path

from figures import CALLS, Allocate, Free, forget, mix
from turns import Measures, answer

REQUESTS = 200
STEPS = 20
EXAMPLES = Path(__file__).parents[1] / "examples"


class PlugMeasures(Measures):
    """What is measured of every way: `calls` is what a thread allocates with and frees with."""

    @contextlib.contextmanager
    def calls(self) -> Iterator[tuple[Allocate, Free]]:
        """Prepare a thread."""
        raise NotImplementedError

    def pair(self) -> float:
        """Return the nanoseconds of 1 KiB that is freed at once."""
        with self.calls() as (allocate, free):
            statement = "allocate(1024)" if free is forget else "free(allocate(1024))"
            return timeit.timeit(statement, globals={"allocate": allocate, "free": free}, number=CALLS) / CALLS * 1e9

    def mix(self, threads: int) -> float:
        """Return the nanoseconds of a step of the random mix."""
        return mix(self.calls, threads)


class CupyMeasures(PlugMeasures):
    """CuPy, on its own pool, on the driver's, or on gpupool."""

    def __init__(self, way: str) -> None:
        import cupy

        self._cupy, self._way = cupy, way
        if way == "cupy async":
            cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
        elif way == "cupy over gpupool":
            import gpupool

            gpupool.cupy.enable()
        cupy.zeros(1)

    @contextlib.contextmanager
    def calls(self) -> Iterator[tuple[Allocate, Free]]:
        """Prepare a thread."""
        # A thread that has launched nothing has no context, and each question for its device takes a microsecond.
        self._cupy.zeros(1)
        self._cupy.cuda.Device().synchronize()
        yield self._cupy.cuda.alloc, forget

    def program(self) -> float:
        """Return the milliseconds of examples/cupy_pool.py, over a pool without memory."""
        sys.path.append(str(EXAMPLES))
        import cupy_pool

        cupy_pool.measure(4, int)
        if self._way == "cupy over gpupool":
            import gpupool

            gpupool.empty_cache()
            return cupy_pool.measure(REQUESTS, int).seconds * 1e3
        cuda = self._cupy.cuda
        pool = cuda.MemoryAsyncPool() if self._way == "cupy async" else cuda.MemoryPool()
        pool.free_all_blocks()
        with cuda.using_allocator(pool.malloc):
            milliseconds = cupy_pool.measure(REQUESTS, int).seconds * 1e3
        pool.free_all_blocks()
        return milliseconds


class CoreMeasures(PlugMeasures):
    """cuda.core, on its own resource or on gpupool's."""

    def __init__(self, way: str) -> None:
        from cuda.core import Device, DeviceMemoryResource

        self._device = Device
        device = Device(0)
        device.set_current()
        if way == "cuda.core over gpupool":
            import gpupool

            self._resource = gpupool.cuda_core.MemoryResource(0)
        else:
            self._resource = DeviceMemoryResource(device)

    @contextlib.contextmanager
    def calls(self) -> Iterator[tuple[Allocate, Free]]:
        """Prepare a thread."""
        device, allocate = self._device(0), self._resource.allocate
        device.set_current()
        stream = device.create_stream()
        yield lambda nbytes: allocate(nbytes, stream=stream), lambda buffer: buffer.close()


class WarpMeasures(PlugMeasures):
    """Warp, on the driver's pool as by default, on `cudaMalloc`, or on gpupool."""

    def __init__(self, way: str) -> None:
        import warp

        self._warp, self._sample = warp, None
        warp.init()
        if way == "warp over gpupool":
            import gpupool

            gpupool.warp.enable()
        elif way == "warp without its pool":
            warp.set_mempool_enabled("cuda:0", False)

    @contextlib.contextmanager
    def calls(self) -> Iterator[tuple[Allocate, Free]]:
        """Prepare a thread; all have one stream, since a device of Warp has."""
        empty, uint8 = self._warp.empty, self._warp.uint8
        yield lambda nbytes: empty(nbytes, dtype=uint8, device="cuda:0"), forget

    def program(self) -> float:
        """Return the milliseconds of some steps of Warp's sample, whose kernels the first call compiles."""
        self.prepare_sample()
        return self.steps()

    def prepare_sample(self) -> None:
        """Make Warp's sample, and compile its kernels."""
        warp = self._warp
        if self._sample is None:
            from warp.examples.fem.example_navier_stokes import Example

            warp.set_module_options({"enable_backward": False})
            with warp.ScopedDevice("cuda:0"):
                self._sample = Example(quiet=True)
            self.steps()

    def steps(self, count: int = STEPS) -> float:
        """Return the milliseconds of so many steps of the sample."""
        self._warp.synchronize_device("cuda:0")
        start = time.perf_counter()
        with self._warp.ScopedDevice("cuda:0"):
            for _ in range(count):
                self._sample.step()
        self._warp.synchronize_device("cuda:0")
        return (time.perf_counter() - start) * 1e3


def measures_of(way: str) -> PlugMeasures:
    """Return what measures a way."""
    kinds = {"cupy": CupyMeasures, "cuda.core": CoreMeasures, "warp": WarpMeasures}
    return kinds[way.split()[0]](way)


if __name__ == "__main__":
    # A collection takes longer than a thousand steps, and falls on the peer that is at work.
    gc.disable()
    answer(measures_of)
