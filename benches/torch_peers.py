"""PyTorch on gpupool's memory and on its own, in one run on one machine. One JSON object a line.

    python benches/torch_peers.py

Everything is timed from Python. A process has one allocator, so each way has its own: PyTorch's, PyTorch's with
expandable segments, PyTorch's pool fed by gpupool (``gpupool.torch.using``), and gpupool alone
(``gpupool.torch.enable``). Times are nanoseconds; with several threads, those of the slowest.
"""

import contextlib
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import timeit

CALLS = 20_000
ROUNDS = 9
STEPS = 2000
THREADS = (1, 16)
CONFIGURATION = "PYTORCH_CUDA_ALLOC_CONF"
WAYS = ("torch", "torch expandable", "torch pool of gpupool", "gpupool")


def tell(**figures: object) -> None:
    """Print one line of results."""
    print(json.dumps(figures), flush=True)


def nanoseconds(statement: str, **names: object) -> float:
    """The median time of a statement, with what looping over it costs."""
    rounds = timeit.repeat(statement, globals=names, number=CALLS, repeat=ROUNDS)
    return round(statistics.median(rounds) / CALLS * 1e9, 1)


def mix(threads: int, scope) -> float:
    """A step of the random mix of benches/memory.rs with tensors: nanoseconds of the slowest thread."""
    import torch

    together = threading.Barrier(threads)
    times: list[float] = []
    failures: list[BaseException] = []

    def run(index: int) -> None:
        numbers, live = random.Random(42 + index), []

        def step() -> None:
            if len(live) < 100 or (len(live) < 200 and numbers.random() < 0.5):
                live.append(torch.empty(int(2 ** numbers.uniform(9, 23)), dtype=torch.uint8, device="cuda"))
            else:
                place = numbers.randrange(len(live))
                live[place] = live[-1]
                live.pop()

        with scope():
            for _ in range(500):
                step()
            together.wait()
            start = time.perf_counter_ns()
            for _ in range(STEPS):
                step()
            times.append((time.perf_counter_ns() - start) / STEPS)

    def guarded(index: int) -> None:
        try:
            run(index)
        except BaseException as error:
            failures.append(error)
            together.abort()

    running = [threading.Thread(target=guarded, args=(index,)) for index in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
    return round(max(times), 1)


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
    names = {"empty": torch.empty, "uint8": torch.uint8, "device": torch.device("cuda", 0)}
    empty = "empty(SIZE, dtype=uint8, device=device)"
    with scope():
        for size in (1024, 1 << 20, 32 << 20):
            tell(peer=way, work=f"empty({size}, uint8)", ns=nanoseconds(empty.replace("SIZE", str(size)), **names))
        names = {"alloc": torch.cuda.caching_allocator_alloc, "delete": torch.cuda.caching_allocator_delete}
        tell(peer=way, work="caching_allocator_alloc(1024)", ns=nanoseconds("delete(alloc(1024))", **names))
    for threads in THREADS:
        tell(peer=way, work="mix of empty()", threads=threads, ns_per_step=mix(threads, scope))
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
    # A collection takes longer than a thousand steps, and falls on whoever is at work.
    gc.disable()
    if len(sys.argv) > 1:
        measure(sys.argv[1])
    else:
        main()
