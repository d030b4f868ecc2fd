"""One way of having PyTorch's memory, in a process of its own: does what torch_peers.py asks it to measure, in turn.

python benches/torch_peer.py WAY
"""

import contextlib
import gc
import timeit
from collections.abc import Iterator

from figures import CALLS, Allocate, Free, forget, mix
from torch_calls import Calls
from torch_workloads import PEAKS, peak, small_operations
from turns import Measures, answer

GPUPOOL = "gpupool"


class TorchMeasures(Measures):
    """What can be measured of one way."""

    def __init__(self, way: str) -> None:
        import gpupool.torch

        if way == GPUPOOL:
            gpupool.torch.enable()
        import torch

        self._torch = torch
        # The context.
        torch.cuda.synchronize()
        self._free = torch.cuda.mem_get_info()[0]
        self._calls: Calls | None = None

    def statement(self, statement: str) -> float:
        """Return the nanoseconds that a statement takes."""
        torch = self._torch
        import gpupool

        names = {
            "empty": torch.empty,
            "uint8": torch.uint8,
            "device": torch.device("cuda", 0),
            "alloc": torch.cuda.caching_allocator_alloc,
            "delete": torch.cuda.caching_allocator_delete,
            "gpupool_empty": gpupool.empty,
        }
        return timeit.timeit(statement, globals=names, number=CALLS) / CALLS * 1e9

    def on_a_stream(self, statement: str) -> float:
        """Return the same on a stream of PyTorch's."""
        with self._torch.cuda.stream(self._torch.cuda.Stream()):
            return self.statement(statement)

    def _mix(self, threads: int, *, has_memory: bool = True, has_own_streams: bool = False) -> float:
        torch = self._torch

        @contextlib.contextmanager
        def in_context() -> Iterator[tuple[Allocate, Free]]:
            # A thread that has launched nothing has no context, and each question for its device takes a microsecond.
            torch.zeros(1, device="cuda")
            # Names of each thread: without a GIL those that count references to one object wait for each other.
            empty, uint8, has_bytes = torch.empty, torch.uint8, has_memory
            with torch.cuda.stream(torch.cuda.Stream() if has_own_streams else None):
                yield lambda nbytes: empty(nbytes if has_bytes else 0, dtype=uint8, device="cuda"), forget

        return mix(in_context, threads)

    def mix(self, threads: int) -> float:
        """Return the nanoseconds of a step of the random mix."""
        return self._mix(threads)

    def mix_on_streams(self, threads: int) -> float:
        """Return the same with a stream for each thread."""
        return self._mix(threads, has_own_streams=True)

    def mix_without_memory(self, threads: int) -> float:
        """Return the same where no tensor has memory: what is Python's and PyTorch's, whatever the allocator."""
        return self._mix(threads, has_memory=False)

    def cpp(self, what: str, argument: int) -> float:
        """Return the nanoseconds of what is timed in C++."""
        if self._calls is None:
            self._calls = Calls()
        return getattr(self._calls, what)(argument)

    def step(self) -> float:
        """Return the microseconds of a step of training."""
        return small_operations()

    def peak(self, name: str) -> float:
        """Return the most MiB that a program had of the driver."""
        gc.enable()
        return peak(PEAKS[name], self._free)


if __name__ == "__main__":
    # A collection takes longer than a thousand steps, and falls on the peer that is at work.
    gc.disable()
    answer(TorchMeasures)
