"""Allocating device memory with gpupool's Python API and with its peers, in one run, as one JSON object a line.

    python benches/memory_peers.py [TRACE.csv.gz...]
    python benches/memory_peers.py --torch [TRACE.csv.gz...]    PyTorch alone, with the settings of the environment
    python benches/memory_peers.py --replay TRACE.csv.gz...     the same, and nothing but the traces

Times are nanoseconds. PyTorch's allocator is driven from C++ (benches/torch_mix.cpp, built here) as benches/memory.rs
drives gpupool's, once with its default settings and once with expandable segments. Where that cannot be built, threads
of Python stand in, and the line says so. A peer that is not installed is left out.
"""

import contextlib
import gzip
import os
import subprocess
import sys
from pathlib import Path

from figures import measured, mix, nanoseconds, tell
from torch_calls import Calls

THREADS = (1, 2, 4, 8, 16)
CONFIGURATION = "PYTORCH_CUDA_ALLOC_CONF"


def python_figures() -> None:
    """Print what allocating 1 KiB and freeing it takes from Python."""
    tell(peer="python", work="empty lambda", ns=nanoseconds("f()", f=lambda: None))
    with contextlib.suppress(ImportError):
        import gpupool

        if hasattr(gpupool, "empty"):
            tell(peer="gpupool", work="empty(1024)", ns=nanoseconds("empty(1024)", empty=gpupool.empty))
            names = {"empty": gpupool.empty, "stream": gpupool.Stream()}
            tell(peer="gpupool", work="empty(1024, stream)", ns=nanoseconds("empty(1024, stream)", **names))
    with measured("cupy"):
        import cupy

        tell(peer="cupy", work="cuda.alloc(1024)", ns=nanoseconds("alloc(1024)", alloc=cupy.cuda.alloc))
        names = {"empty": cupy.empty, "uint8": cupy.uint8}
        tell(peer="cupy", work="empty(1024, uint8)", ns=nanoseconds("empty(1024, uint8)", **names))
    with measured("torch"):
        import torch

        names = {"empty": torch.empty, "uint8": torch.uint8, "device": torch.device("cuda", 0)}
        time_ = nanoseconds("empty(1024, dtype=uint8, device=device)", **names)
        tell(peer="torch", work="empty(1024, uint8)", ns=time_)
        names = {"alloc": torch.cuda.caching_allocator_alloc, "delete": torch.cuda.caching_allocator_delete}
        tell(peer="torch", work="caching_allocator_alloc(1024)", ns=nanoseconds("delete(alloc(1024))", **names))
    cuda_core_figures()


def cuda_core_figures() -> None:
    """Print the same for NVIDIA's own Python package, in either of the places that it has had."""
    with measured("cuda.core"):
        try:
            from cuda.core import Device, DeviceMemoryResource
        except ImportError:
            from cuda.core.experimental import Device, DeviceMemoryResource
        device = Device(0)
        device.set_current()
        names = {"allocate": DeviceMemoryResource(device).allocate, "stream": device.create_stream()}
        time_ = nanoseconds("allocate(1024, stream=stream).close()", **names)
        tell(peer="cuda.core", work="allocate(1024)", ns=time_)


def read_trace(path: str) -> tuple[list[int], list[int], list[int], int]:
    """Return slots, sizes (0 for a free) and stream numbers of a log, and the most bytes live."""
    slots: list[int] = []
    sizes: list[int] = []
    numbers: list[int] = []
    live: dict[str, tuple[int, int]] = {}
    streams: dict[str, int] = {}
    count = now = peak = 0
    with gzip.open(path, "rt") as lines:
        next(lines)
        for line in lines:
            _, _, action, pointer, size, stream = line.rstrip("\n").split(",")
            number = streams.setdefault(stream, len(streams))
            if action == "allocate":
                live[pointer] = (count, int(size))
                slot, bytes_ = count, int(size)
                count += 1
                now += bytes_
                peak = max(peak, now)
            elif pointer in live:
                slot, freed = live.pop(pointer)
                bytes_ = 0
                now -= freed
            else:
                continue
            slots.append(slot)
            sizes.append(bytes_)
            numbers.append(number)
    return slots, sizes, numbers, peak


def python_mix(threads: int) -> float:
    """Return the time of benches/memory.rs's mix through PyTorch's Python calls, where nothing can be built."""
    import torch

    calls = (lambda nbytes: torch.cuda.caching_allocator_alloc(nbytes, 0, 0), torch.cuda.caching_allocator_delete)
    return mix(lambda: contextlib.nullcontext(calls), threads)


def begin_torch() -> None:
    """Have PyTorch make its context, which no figure has in it."""
    import torch

    torch.empty(1, device="cuda")


def torch_figures(traces: list[str]) -> None:
    """Print what PyTorch's allocator takes with the settings of this process."""
    begin_torch()
    setting = os.environ.get(CONFIGURATION, "")
    try:
        native = Calls()
    except Exception as error:
        why = str(error).strip().splitlines()[-1:] or [repr(error)]
        tell(peer="torch", conf=setting, note="the C++ peer cannot be built here; Python threads instead", why=why[0])
        for threads in THREADS:
            tell(peer="torch", conf=setting, work="python mix", threads=threads, ns_per_step=python_mix(threads))
        return
    for size in (512, 65536, 1 << 20, 32 << 20):
        tell(peer="torch", conf=setting, work="pair", size=size, ns_per_pair=round(native.pair(size), 1))
    for threads in THREADS:
        tell(peer="torch", conf=setting, work="mix", threads=threads, ns_per_step=round(native.mix(threads), 1))
    replay_with_torch(native, traces)


def replay_with_torch(native: Calls, traces: list[str]) -> None:
    """Print what PyTorch's allocator takes for these logs, with the settings of this process."""
    setting = os.environ.get(CONFIGURATION, "")
    for path in traces:
        slots, sizes, numbers, peak = read_trace(path)
        figures = native.replay(slots, sizes, numbers)
        ratio = round(figures["peak_reserved"] / peak, 4)
        trace = {"peer": "torch", "conf": setting, "trace": Path(path).name, "events": len(slots), "peak_live": peak}
        tell(**trace, ratio=ratio, **{name: round(figure, 1) for name, figure in figures.items()})


def main() -> None:
    """Measure everything that can be measured here."""
    match sys.argv[1:]:
        case ["--torch", *traces]:
            torch_figures(traces)
            return
        case ["--replay", *traces]:
            begin_torch()
            replay_with_torch(Calls(), traces)
            return
    python_figures()
    try:
        import torch  # noqa: F401
    except ImportError:
        return
    for setting in ("", "expandable_segments:True"):
        # PyTorch reads its settings once, so each has a process of its own.
        environment = {name: value for name, value in os.environ.items() if name != CONFIGURATION}
        if setting:
            environment[CONFIGURATION] = setting
        subprocess.run([sys.executable, __file__, "--torch", *sys.argv[1:]], env=environment, check=True)


if __name__ == "__main__":
    main()
