"""How long pools take to sleep and to wake, beside one plain copy of the same bytes and beside torch-memory-saver.

    python benches/sleep.py [--gib 64] [--without-backup] [--output FILE]

Memory is CuPy's arrays in one pool of gpupool's, with a captured graph that uses them, which is replayed and checked in
between. Each line names what it took, in milliseconds: the first sleep of the process, with nothing prepared, and then
the median of five, with the pinned memory there. Where PyTorch and torch-memory-saver are installed, the same tensors
sleep by that in a process of its own. Without a backup there are two lines of each: with half a second in between, as
where another program has the device meanwhile, and woken at once, when the driver still clears what was given back.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

MIB, GIB = 1 << 20, 1 << 30
LARGE, SMALL = 512 * MIB, 2 * MIB
SIZES = (("large tensors", LARGE), ("small tensors", SMALL))
ROUNDS = 5
# Longer than the driver takes to clear what was given back, which is 0.1 s for 64 GiB on an H200.
PAUSE = 0.5


def milliseconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def median(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of the first and of the second of each pair."""
    firsts, seconds = zip(*pairs, strict=True)
    return statistics.median(firsts), statistics.median(seconds)


def titled(name: str, backup: str | None, pause: float) -> str:
    """Return the name of a line."""
    return f"{name}, {'with' if backup else 'without'} backup{'' if backup or pause else ', woken at once'}"


def pauses(backup: str | None) -> tuple[float, ...]:
    """Return the seconds between sleep and waking: where much is copied they change nothing."""
    return (0.0,) if backup else (PAUSE, 0.0)


def plain_copies(nbytes: int) -> tuple[float, float]:
    """Return what a copy of so many bytes takes from the device to pinned memory, and back."""
    import cupy
    import gpupool

    piece = min(nbytes, GIB)
    there, here = gpupool.empty(piece), gpupool.empty_pinned(piece)
    copy, stream = cupy.cuda.runtime.memcpyAsync, cupy.cuda.Stream(non_blocking=True)
    # cudaMemcpyDeviceToHost and cudaMemcpyHostToDevice.
    ways = [(here.ptr, there.ptr, 2), (there.ptr, here.ptr, 1)]

    def run(to: int, source: int, kind: int) -> None:
        for _ in range(nbytes // piece):
            copy(to, source, piece, kind, stream.ptr)
        stream.synchronize()

    run(*ways[0])
    return tuple(statistics.median(milliseconds(lambda way=way: run(*way)) for _ in range(ROUNDS)) for way in ways)


class Arrays:
    """Arrays in a pool, and a graph that adds one to every word of the first."""

    def __init__(self, nbytes: int, size: int) -> None:
        import cupy
        import gpupool

        self._cupy = cupy
        self.pool = gpupool.MemPool()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        with gpupool.cupy.using(self.pool), self._stream:
            self._arrays = [cupy.full(size // 8, place, cupy.uint64) for place in range(nbytes // size)]
            add = cupy.ElementwiseKernel("", "uint64 word", "word = word + 1", "count_up")
            add(self._arrays[0])
            self._stream.begin_capture()
            add(self._arrays[0])
            self._graph = self._stream.end_capture()
        self._stream.synchronize()
        self._turns = 1

    def check(self) -> None:
        """Replay the graph, and check every word."""
        self._graph.launch(self._stream)
        self._stream.synchronize()
        self._turns += 1
        for place, array in enumerate(self._arrays):
            expected = self._turns if place == 0 else place
            wrong = int(self._cupy.count_nonzero(array != self._cupy.uint64(expected)))
            assert not wrong, f"{wrong} words of array {place} are wrong"

    def cycle(self, backup: str | None, pause: float) -> tuple[float, float]:
        """Return what a sleep takes and what waking takes, so many seconds after it."""
        self._cupy.cuda.Device().synchronize()
        asleep = milliseconds(lambda: self.pool.sleep(backup=backup))
        time.sleep(pause)
        times = asleep, milliseconds(self.pool.wake)
        if backup:
            self.check()
        return times


def of_gpupool(nbytes: int, backups: list[str | None]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield what gpupool takes, with these backups."""
    import gpupool

    def entry(name: str, times: tuple[float, float]) -> tuple[str, dict[str, float]]:
        return name, {"sleep_ms": times[0], "wake_ms": times[1]}

    is_first = True
    for name, size in SIZES:
        arrays = Arrays(nbytes, size)
        for backup in backups:
            if is_first:
                yield entry("the first of the process", arrays.cycle(backup, 0))
                is_first = False
            for pause in pauses(backup):
                yield entry(titled(name, backup, pause), median([arrays.cycle(backup, pause) for _ in range(ROUNDS)]))
        arrays.pool.close()
        del arrays
        gpupool.empty_cache()
    if any(backups):
        yield entry("plain copies", plain_copies(nbytes))


def of_memory_saver(nbytes: int, size: int, backup: bool) -> NoReturn:
    """Print what torch-memory-saver takes on as many tensors, for each pause, and end the process."""
    import torch
    from torch_memory_saver import torch_memory_saver as saver

    saver.hook_mode = "torch"
    with saver.region(tag="all", enable_cpu_backup=backup):
        _tensors = [torch.full((size // 8,), place, device="cuda") for place in range(nbytes // size)]
    torch.cuda.synchronize()
    for pause in pauses("host" if backup else None):
        pairs = []
        # With a backup of 64 GiB it takes half a minute.
        for _ in range(1 if backup else ROUNDS):
            asleep = milliseconds(lambda: saver.pause("all"))
            time.sleep(pause)
            pairs.append((asleep, milliseconds(lambda: saver.resume("all"))))
            torch.cuda.synchronize()
        sleep, wake = median(pairs)
        print(json.dumps({"sleep_ms": sleep, "wake_ms": wake}), flush=True)
    # It ends the process where memory is freed outside of its region, as at the end of the interpreter.
    os._exit(0)


def main() -> None:
    """Measure, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, default=0, help="live GiB; by default 64, or 32 where there is less memory")
    parser.add_argument("--without-backup", action="store_true", help="only what copies nothing")
    parser.add_argument("--output", help="a file for the figures as JSON")
    parser.add_argument("--peer", type=int, metavar="BYTES", help=argparse.SUPPRESS)
    parser.add_argument("--backup", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        of_memory_saver(arguments.gib * GIB, arguments.peer, arguments.backup)
    import gpupool

    total = gpupool.memory_summary().devices[0].total_bytes or 0
    gib = arguments.gib or (64 if total > 70 * GIB else 32 if total > 36 * GIB else max(1, total // GIB // 2))
    results: dict[str, Any] = {"gib": gib, "large_bytes": LARGE, "small_bytes": SMALL}
    backups: list[str | None] = [None] if arguments.without_backup else ["host", None]
    # Before this process has memory, which both together would not find.
    for (name, size), backup in itertools.product(SIZES, backups):
        command = [sys.executable, __file__, "--gib", str(gib), "--peer", str(size), *(["--backup"] if backup else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told = done.stdout.strip().splitlines()
        for pause, line in itertools.zip_longest(pauses(backup), told[-len(pauses(backup)) :]):
            title = f"torch-memory-saver, {titled(name, backup, pause)}"
            results[title] = json.loads(line) if done.returncode == 0 and line else done.stderr[-400:]
            print(f"{title}: {results[title]}", flush=True)
    for name, times in of_gpupool(gib * GIB, backups):
        results[name] = times
        print(f"{name}: sleep {times['sleep_ms']:.1f} ms, wake {times['wake_ms']:.1f} ms", flush=True)
    if arguments.output:
        with open(arguments.output, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
