"""PyTorch on gpupool's memory and on its own, in one run on one machine, as one JSON object a line.

    python benches/torch_peers.py

A process has one allocator, so each way has its own: PyTorch's, PyTorch's with expandable segments, PyTorch's pool fed
by gpupool (``gpupool.torch.using``), and gpupool alone (``gpupool.torch.enable``). What is timed in C++ goes through
``c10::cuda::CUDACachingAllocator``, and each peak of memory, by the driver's count, is taken in a process of its own.
Times are nanoseconds, of a step of training microseconds; with several threads, those of the slowest. The last lines
are ratios: gpupool's figure to that of PyTorch's own, and to that with expandable segments.
"""

import contextlib
import gc
import json
import os
import subprocess
import sys

from figures import THREADS, forget, nanoseconds, tell, tell_mix
from torch_calls import Calls
from torch_workloads import PEAKS, peak, small_operations

CONFIGURATION = "PYTORCH_CUDA_ALLOC_CONF"
OURS = "gpupool"
OWN = ("torch", "torch expandable")
WAYS = (*OWN, "torch pool of gpupool", OURS)
SIZES = (1024, 1 << 20, 32 << 20)
# What tells one line of results from another, and what it has told.
KEYS, FIGURES = ("work", "threads", "size"), ("ns", "ns_per_step", "ns_per_pair", "us", "mib")


def enable(way: str) -> None:
    """Make gpupool the allocator where that is the way."""
    import gpupool.torch

    if way == OURS:
        gpupool.torch.enable()


def measure_python(way: str) -> None:
    """Measure calls from Python."""
    import gpupool.torch

    enable(way)
    import torch

    scope = contextlib.nullcontext
    if way == "torch pool of gpupool":
        pool = gpupool.MemPool()
        scope = lambda: gpupool.torch.using(pool)  # noqa: E731

    @contextlib.contextmanager
    def peer():
        with scope():
            yield lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, device="cuda"), forget

    names = {"empty": torch.empty, "uint8": torch.uint8, "device": torch.device("cuda", 0)}
    empty = "empty(SIZE, dtype=uint8, device=device)"
    with scope():
        for size in SIZES:
            tell(peer=way, work=f"empty({size}, uint8)", ns=nanoseconds(empty.replace("SIZE", str(size)), **names))
        names = {"alloc": torch.cuda.caching_allocator_alloc, "delete": torch.cuda.caching_allocator_delete}
        tell(peer=way, work="caching_allocator_alloc(1024)", ns=nanoseconds("delete(alloc(1024))", **names))
    tell_mix(way, peer)
    if way != OURS:
        return
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tell(peer=way, work="gpupool.empty(1024) on torch's stream", ns=nanoseconds("f(1024)", f=gpupool.empty))


def measure_cpp(way: str) -> None:
    """Measure calls from C++."""
    import torch

    torch.empty(1, device="cuda")
    enable(way)
    calls = Calls()
    for size in SIZES:
        tell(peer=way, work="C++ pair", size=size, ns_per_pair=round(calls.pair(size), 1))
        tell(peer=way, work="C++ storage", size=size, ns_per_pair=round(calls.storage(size), 1))
    for threads in THREADS:
        tell(peer=way, work="C++ mix", threads=threads, ns_per_step=round(calls.mix(threads), 1))


def measure_step(way: str) -> None:
    """Measure a step of training."""
    enable(way)
    tell(peer=way, work="step of small operations", us=small_operations())


def measure_peak(way: str, name: str) -> None:
    """Measure the peak of a workload."""
    gc.enable()
    enable(way)
    tell(peer=way, work=f"peak of {name}", mib=peak(PEAKS[name]))


def run(way: str, *what: str) -> list[dict]:
    """Measure in a process of its own, print its lines and return them."""
    environment = {name: value for name, value in os.environ.items() if name != CONFIGURATION}
    if way == "torch expandable":
        environment[CONFIGURATION] = "expandable_segments:True"
    done = subprocess.run([sys.executable, __file__, way, *what], env=environment, check=False, stdout=subprocess.PIPE)
    lines = [json.loads(line) for line in done.stdout.decode().splitlines() if line.startswith("{")]
    for line in lines:
        tell(**line)
    if done.returncode:
        tell(peer=way, work=" ".join(what), error=f"ended with status {done.returncode}")
    return lines


def tell_ratios(lines: list[dict]) -> None:
    """Print what gpupool's figures are of PyTorch's own."""
    figures: dict[tuple, dict[str, float]] = {}
    for line in lines:
        for name in FIGURES:
            if name in line:
                figures.setdefault(tuple(line.get(key) for key in KEYS), {})[line["peer"]] = line[name]
    for keys, of_peers in figures.items():
        ratios = {
            peer: round(of_peers[OURS] / of_peers[peer], 3) for peer in OWN if OURS in of_peers and of_peers.get(peer)
        }
        if ratios:
            told = {key: value for key, value in zip(KEYS, keys, strict=True) if value is not None}
            tell(peer="ratio of gpupool", **told, to=ratios)


def main() -> None:
    """Measure all ways, each in processes of its own."""
    lines = []
    for way in WAYS:
        lines += run(way, "python")
    for way in (*OWN, OURS):
        lines += run(way, "cpp")
        lines += run(way, "step")
        for name in PEAKS:
            lines += run(way, "peak", name)
    tell_ratios(lines)


if __name__ == "__main__":
    # A collection takes longer than a thousand steps, and falls on the peer that is at work.
    gc.disable()
    if len(sys.argv) > 1:
        measures = {"python": measure_python, "cpp": measure_cpp, "step": measure_step, "peak": measure_peak}
        measures[sys.argv[2]](sys.argv[1], *sys.argv[3:])
    else:
        main()
