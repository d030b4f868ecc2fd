"""All-reduces of two GPUs on a pool of gpupool's that is registered with NCCL, beside memory of NCCL's own allocator.

    python benches/nccl.py [--mib 256] [--rounds 15] [--windows]

Each GPU has a process of its own. In each round every kind of memory is reduced in turn, in an order that turns round
by round, ITERATIONS times each between two events. Rank 0 prints a JSON object for each round, in microseconds for one
all-reduce, and last one with the medians of the rounds' ratios to `ncclMemAlloc`'s registered memory. NVLink multicast
is off. Skips where there is no second GPU.
"""

import argparse
import ctypes
import faulthandler
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from nccl_registered_pool import MIB, RegisteredPool, connect, reason_to_skip, run

ITERATIONS = 20
OWN, POOLED = "ncclMemAlloc, registered", "gpupool, registered"


class NcclMemory:
    """Memory of `ncclMemAlloc`, registered."""

    def __init__(self, nccl: Any, nbytes: int, windows: bool) -> None:
        self._nccl, self._windows = nccl, windows
        self._pointer = ctypes.c_void_p()
        nccl.call("ncclMemAlloc", ctypes.byref(self._pointer), ctypes.c_size_t(nbytes))
        self.ptr = self._pointer.value or 0
        self._handle = nccl.register(self.ptr, nbytes, windows)

    def close(self) -> None:
        """Deregister it, and give it back."""
        self._nccl.deregister(self._handle, self._windows)
        self._nccl.call("ncclMemFree", self._pointer)


def work(rank: int, ends: Any, mib: int, rounds: int, windows: bool) -> None:
    """Be one of the processes."""
    nccl = connect(rank, ends)
    import gpupool
    import torch

    nbytes, stream = mib * MIB, torch.cuda.Stream()
    registered = RegisteredPool(nccl, windows)
    pooled = registered.pool.empty(nbytes, stream.cuda_stream)
    own = NcclMemory(nccl, nbytes, windows)
    plain = gpupool.empty(nbytes, stream.cuda_stream)
    cuda = torch.empty(nbytes // 4, device="cuda")
    places = {
        POOLED: pooled.ptr,
        OWN: own.ptr,
        "gpupool, not registered": plain.ptr,
        "PyTorch, not registered": cuda.data_ptr(),
    }
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def microseconds(address: int) -> float:
        # One first, in which the processes meet.
        nccl.all_reduce(address, nbytes // 4, stream.cuda_stream)
        with torch.cuda.stream(stream):
            started.record()
            for _ in range(ITERATIONS):
                nccl.all_reduce(address, nbytes // 4, stream.cuda_stream)
            ended.record()
        stream.synchronize()
        return started.elapsed_time(ended) * 1e3 / ITERATIONS

    for address in places.values():
        microseconds(address)
    figures: dict[str, list[float]] = {name: [] for name in places}
    names = [*places]
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            figures[name].append(microseconds(places[name]))
        if rank == 0:
            print(json.dumps({"round": number, **{name: round(figures[name][-1], 2) for name in names}}), flush=True)
    if rank == 0:
        ratios = {
            name: statistics.median(one / other for one, other in zip(found, figures[OWN], strict=True))
            for name, found in figures.items()
        }
        told = {
            "nccl": ".".join(map(str, nccl.version)),
            "mib": mib,
            "windows": windows,
            "median_us": {name: round(statistics.median(found), 2) for name, found in figures.items()},
            "ratio_to_ncclMemAlloc": {name: round(ratio, 4) for name, ratio in ratios.items()},
            "ratio": round(ratios[POOLED], 4),
        }
        print(json.dumps(told), flush=True)
    own.close()
    del pooled, plain, cuda
    registered.close()
    nccl.close()
    faulthandler.cancel_dump_traceback_later()


def main() -> int:
    """Measure, and print a line for each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="what is added, in MiB")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--windows", action="store_true", help="register windows, which NCCL 2.27 and later have")
    arguments = parser.parse_args()
    reason = reason_to_skip()
    if reason:
        print(f"skipped: {reason}")
        return 0
    return run(work, arguments.mib, arguments.rounds, arguments.windows)


if __name__ == "__main__":
    sys.exit(main())
