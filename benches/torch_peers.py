"""PyTorch on gpupool's memory and on its own, in one run on one machine, as one JSON object a line.

    python benches/torch_peers.py

Everything is timed from Python. A process has one allocator, so each way has its own: PyTorch's, PyTorch's with
expandable segments, PyTorch's pool fed by gpupool (``gpupool.torch.using``), and gpupool alone
(``gpupool.torch.enable``). Times are nanoseconds; with several threads, those of the slowest.
"""

import contextlib
import gc
import os
import subprocess
import sys

from figures import forget, nanoseconds, tell, tell_mix

CONFIGURATION = "PYTORCH_CUDA_ALLOC_CONF"
WAYS = ("torch", "torch expandable", "torch pool of gpupool", "gpupool")


def measure(way: str) -> None:
    """Measure one way, in this process."""
    import gpupool.torch

    if way == "gpupool":
        gpupool.torch.enable()
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
        for size in (1024, 1 << 20, 32 << 20):
            tell(peer=way, work=f"empty({size}, uint8)", ns=nanoseconds(empty.replace("SIZE", str(size)), **names))
        names = {"alloc": torch.cuda.caching_allocator_alloc, "delete": torch.cuda.caching_allocator_delete}
        tell(peer=way, work="caching_allocator_alloc(1024)", ns=nanoseconds("delete(alloc(1024))", **names))
    tell_mix(way, peer)
    if way != "gpupool":
        return
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tell(peer=way, work="gpupool.empty(1024) on torch's stream", ns=nanoseconds("f(1024)", f=gpupool.empty))


def main() -> None:
    """Measure all ways, each in a process of its own."""
    for way in WAYS:
        environment = {name: value for name, value in os.environ.items() if name != CONFIGURATION}
        if way == "torch expandable":
            environment[CONFIGURATION] = "expandable_segments:True"
        done = subprocess.run([sys.executable, __file__, way], env=environment, check=False)
        if done.returncode:
            tell(peer=way, error=f"ended with status {done.returncode}")


if __name__ == "__main__":
    # A collection takes longer than a thousand steps, and falls on the peer that is at work.
    gc.disable()
    if len(sys.argv) > 1:
        measure(sys.argv[1])
    else:
        main()
