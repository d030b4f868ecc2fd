"""One way of having pinned memory, in a process of its own: does what pinned_peers.py asks it to measure, in turn.

    python benches/pinned_peer.py WAY

Each line read is a JSON list, the name of a measure and its arguments; each line written is its result.
"""

import contextlib
import gc
import json
import sys
import time
import timeit
from collections.abc import Callable
from typing import Any

from cuda_driver import Driver
from figures import CALLS, forget, interpreter, mix
from pinned_workloads import PROGRAMS

SPIN_MILLISECONDS = 300


class Way:
    """A way: how memory is allocated, what frees it if not its end, and what gives back what is cached."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.allocate: Callable[[int], Any] = self.driver.allocate_pinned
        self.free: Callable[[Any], None] = forget
        self.ready = self.allocate
        self.give_back: Callable[[], object] = lambda: None

    def address(self, memory: Any) -> int:
        """Return where memory is."""
        return memory.ptr

    def held(self) -> int:
        """Return the most bytes that were taken of the system since the process began."""
        raise NotImplementedError


class Gpupool(Way):
    """gpupool itself."""

    def __init__(self) -> None:
        super().__init__()
        import gpupool

        self._gpupool = gpupool
        self.allocate = gpupool.empty_pinned
        self.ready = lambda nbytes: gpupool.warm_pinned(nbytes)
        self.give_back = gpupool.empty_cache

    def held(self) -> int:
        """Return what was reserved."""
        return self._gpupool.pinned_stats().peak_reserved_bytes


class Cupy(Way):
    """CuPy's pool."""

    def __init__(self) -> None:
        super().__init__()
        import cupy

        self._held = 0
        plain = cupy.cuda.PinnedMemory

        def allocate(nbytes: int) -> Any:
            self._held += nbytes
            return cupy.cuda.PinnedMemoryPointer(plain(nbytes, cupy.cuda.runtime.hostAllocPortable), 0)

        pool = cupy.cuda.PinnedMemoryPool(allocate)
        self.allocate = self.ready = pool.malloc
        self.give_back = pool.free_all_blocks

    def held(self) -> int:
        """Return all that was ever taken, as no program gives anything back."""
        return self._held


class CupyOverGpupool(Gpupool):
    """CuPy over gpupool."""

    def __init__(self) -> None:
        super().__init__()
        import cupy

        self._gpupool.cupy.enable(pinned=True)
        self.allocate = cupy.cuda.alloc_pinned_memory


class Torch(Way):
    """PyTorch's pinned allocator."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        self._torch = torch
        torch.empty(1, device="cuda")
        self.allocate = self.ready = lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        self.give_back = torch._C._host_emptyCache

    def address(self, memory: Any) -> int:
        """Return where a tensor is."""
        return memory.data_ptr()

    def held(self) -> int:
        """Return what the statistics say."""
        statistics = self._torch.cuda.memory.host_memory_stats()
        # What was taken of the system; the peak of active bytes in PyTorch 2.11 counts what was freed, too.
        return statistics["allocated_bytes.peak"]


class TorchOverGpupool(Torch):
    """PyTorch's pinned tensors over gpupool; its others stay as they are."""

    def __init__(self) -> None:
        import gpupool.torch

        gpupool.torch.enable(allocator=False, pinned=True)
        super().__init__()


class Plain(Way):
    """The driver's own."""

    def __init__(self) -> None:
        super().__init__()
        self.free = self.driver.free_pinned

    def address(self, memory: Any) -> int:
        """Return the address, which is all that there is."""
        return memory


WAYS: dict[str, type[Way]] = {
    "gpupool": Gpupool,
    "torch": Torch,
    "torch over gpupool": TorchOverGpupool,
    "cupy": Cupy,
    "cupy over gpupool": CupyOverGpupool,
    "cudaHostAlloc": Plain,
}


class Measures:
    """What can be measured of one way."""

    def __init__(self, way: str) -> None:
        self._way = WAYS[way]()

    def interpreter(self) -> dict[str, object]:
        """Return what Python the process has."""
        return interpreter()

    def pair(self, nbytes: int) -> float:
        """Return the nanoseconds that memory takes that is freed at once."""
        names = {"allocate": self._way.allocate, "free": self._way.free}
        is_cached = self._way.free is forget
        statement = f"allocate({nbytes})" if is_cached else f"free(allocate({nbytes}))"
        calls = CALLS if is_cached else 20
        return timeit.timeit(statement, globals=names, number=calls) / calls * 1e9

    def mix(self, threads: int) -> float:
        """Return the nanoseconds of a step of the random mix."""
        return mix(lambda: contextlib.nullcontext((self._way.allocate, self._way.free)), threads)

    def ready(self, nbytes: int) -> float:
        """Return the milliseconds after which so many bytes can be used."""
        start = time.perf_counter()
        self._way.ready(nbytes)
        return (time.perf_counter() - start) * 1e3

    def held(self, program: str) -> float:
        """Return the most MiB that a program took of the system."""
        memories: list[Any] = []
        for step in PROGRAMS[program]():
            if isinstance(step, tuple):
                memories[step[1]] = None
            else:
                memories.append(self._way.allocate(step))
        return self._way.held() / 2**20

    def rates(self, nbytes: int) -> dict[str, float]:
        """Return the rates of copies with a block, in GB/s."""
        memory = self._way.allocate(nbytes)
        rates = self._way.driver.copy_rates(self._way.address(memory), nbytes, 10)
        self._way.free(memory)
        return rates

    def turnover(self, nbytes: int, is_busy: bool) -> dict[str, float]:
        """Return the milliseconds of growth and of giving back, with a kernel running or none."""
        way = self._way
        way.give_back()
        way.driver.synchronize()
        if is_busy:
            # Loads the kernel before its time is taken.
            way.driver.spin(1)
            way.driver.synchronize()
            way.driver.spin(SPIN_MILLISECONDS)
        start = time.perf_counter()
        memory = way.allocate(nbytes)
        grown = time.perf_counter()
        way.free(memory)
        del memory
        way.give_back()
        end = time.perf_counter()
        way.driver.synchronize()
        return {"growth": (grown - start) * 1e3, "giving back": (end - grown) * 1e3}


def main() -> None:
    """Measure what is asked until there is no more."""
    # What else prints is not a result.
    results, sys.stdout = sys.stdout, sys.stderr
    # A collection takes longer than a thousand steps, and falls on the peer that is at work.
    gc.disable()
    measures = Measures(sys.argv[1])
    print(json.dumps("ready"), file=results, flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        measure: Callable[..., object] = getattr(measures, name)
        print(json.dumps(measure(*arguments)), file=results, flush=True)


if __name__ == "__main__":
    main()
