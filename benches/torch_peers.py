"""PyTorch on gpupool's memory and on its own, in one run on one machine, as one JSON object a line.

    python benches/torch_peers.py [times] [mixes] [peaks]

A process has one allocator, so each way has its own (torch_peer.py): PyTorch's, and gpupool (``gpupool.torch.enable``);
for peaks of memory also PyTorch's with expandable segments. They take turns at every work, some rounds each, and a
figure is that of the best round: what else the machine does only adds to it. In each round both have the same
processors, as many as the work has threads, since on a shared machine some are slower than others. What is timed in
C++ goes through ``c10::cuda::CUDACachingAllocator``. Each peak of memory, by the driver's count and from the context
on, is taken while no other process is there.

Times are nanoseconds, of a step of training microseconds; with several threads, those of the slowest. The last lines
are ratios, the median of the rounds': gpupool's figure to that of PyTorch's own, and to that with expandable segments;
and of the mix in Python what is left of PyTorch's time where its tensors have no memory, which no allocator can go
below.
"""

import contextlib
import os
import sys

from figures import THREADS, tell
from torch_peer import GPUPOOL
from torch_workloads import PEAKS
from turns import Peer, ratio, take_turns

CONFIGURATION = "PYTORCH_CUDA_ALLOC_CONF"
EXPANDABLE = "torch expandable"
OWN = ("torch", EXPANDABLE)
WAYS = ("torch", GPUPOOL)
SIZES = (1024, 1 << 20, 32 << 20)
ROUNDS, STEP_ROUNDS, LONG_ROUNDS = 16, 8, 4


def environment_of(way: str) -> dict[str, str]:
    """Return the environment of a way's process."""
    environment = {name: value for name, value in os.environ.items() if name != CONFIGURATION}
    if way == EXPANDABLE:
        environment[CONFIGURATION] = "expandable_segments:True"
    return environment


def peer_of(way: str) -> Peer:
    """Start the process of a way."""
    return Peer("torch_peer.py", way, environment_of(way))


class Table:
    """What was measured, by work and way."""

    def __init__(self) -> None:
        self._rows: list[tuple[dict[str, object], dict[str, list[float]]]] = []

    def tell(self, work: dict[str, object], unit: str, rounds: dict[str, list[float]]) -> None:
        """Add a row, and print the best figures."""
        self._rows.append((work, rounds))
        for way, figures in rounds.items():
            tell(peer=way, **work, **{unit: round(min(figures), 1)})

    def tell_ratios(self) -> None:
        """Print what gpupool's figures are of PyTorch's own."""
        for work, rounds in self._rows:
            if GPUPOOL not in rounds:
                continue
            ratios = {way: ratio(rounds[GPUPOOL], rounds[way]) for way in OWN if way in rounds}
            if ratios:
                tell(peer="ratio of gpupool", **work, to=ratios)
        of_torch = {(work["work"], work.get("threads")): rounds.get("torch") for work, rounds in self._rows}
        for threads in THREADS:
            whole, rest = of_torch.get(("mix", threads)), of_torch.get((WITHOUT_MEMORY, threads))
            if not whole or not rest:
                continue
            part = ratio(rest, whole)
            tell(peer="torch", work="part of the mix that is not memory", threads=threads, part=part)


WITHOUT_MEMORY = "mix of tensors without memory"


def measure_times(table: Table) -> None:
    """Measure what takes time."""
    with contextlib.ExitStack() as stack:
        peers = [peer_of(way) for way in WAYS]
        for peer in peers:
            stack.callback(peer.end)
        for size in SIZES:
            statement = f"empty({size}, dtype=uint8, device=device)"
            figures = take_turns(peers, ROUNDS, "statement", statement, processors=1)
            table.tell({"work": f"empty({size}, uint8)"}, "ns", figures)
        figures = take_turns(peers, ROUNDS, "statement", "delete(alloc(1024))", processors=1)
        table.tell({"work": "caching_allocator_alloc(1024)"}, "ns", figures)
        figures = take_turns(peers[-1:], ROUNDS, "on_a_stream", "gpupool_empty(1024)", processors=1)
        table.tell({"work": "gpupool.empty(1024) on torch's stream"}, "ns", figures)
        for what in ("pair", "storage"):
            for size in SIZES:
                figures = take_turns(peers, ROUNDS, "cpp", what, size, processors=1)
                table.tell({"work": f"C++ {what}", "size": size}, "ns_per_pair", figures)
        for threads in THREADS:
            figures = take_turns(peers, LONG_ROUNDS, "cpp", "mix", threads, processors=threads)
            table.tell({"work": "C++ mix", "threads": threads}, "ns_per_step", figures)
        # Autograd has a thread of its own.
        figures = take_turns(peers, STEP_ROUNDS, "step", processors=2)
        table.tell({"work": "step of small operations"}, "us", figures)


def measure_mixes(table: Table) -> None:
    """Measure many sizes at a time, from one thread and sixteen: on the default stream, and on one for each thread."""
    with contextlib.ExitStack() as stack:
        peers = [peer_of(way) for way in WAYS]
        for peer in peers:
            stack.callback(peer.end)
            tell(peer=peer.way, **peer.measure("interpreter"))
        for threads in THREADS:
            rounds = ROUNDS if threads == 1 else LONG_ROUNDS
            for work, measure in (("mix", "mix"), ("mix on own streams", "mix_on_streams")):
                figures = take_turns(peers, rounds, measure, threads, processors=threads)
                table.tell({"work": work, "threads": threads}, "ns_per_step", figures)
            figures = take_turns(peers[:1], rounds, "mix_without_memory", threads, processors=threads)
            table.tell({"work": WITHOUT_MEMORY, "threads": threads}, "ns_per_step", figures)


def measure_peaks(table: Table) -> None:
    """Measure what takes memory."""
    for name in PEAKS:
        figures = {}
        for way in (*OWN, GPUPOOL):
            peer = peer_of(way)
            try:
                figures[way] = [peer.measure("peak", name)]
            finally:
                peer.end()
        table.tell({"work": f"peak of {name}"}, "mib", figures)


MEASURES = {"times": measure_times, "mixes": measure_mixes, "peaks": measure_peaks}


def main() -> None:
    """Measure what is named, or all."""
    table = Table()
    for name in sys.argv[1:] or MEASURES:
        MEASURES[name](table)
    table.tell_ratios()


if __name__ == "__main__":
    main()
