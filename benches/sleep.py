"""How long pools take to sleep and to wake, beside plain copies of the same bytes and beside torch-memory-saver.

    python benches/sleep.py [--gib 32] [--turns 5] [--without-backup]

Memory is CuPy's arrays in one pool of gpupool's, with a captured graph that uses them, which is replayed and checked in
between. Where PyTorch and torch-memory-saver are installed, the same tensors sleep by that. Each way has a process for
each turn, and they alternate. With a backup there is one turn, whose first sleep, with nothing prepared, is told apart.
Without one there is half a second in between, as where another program has the device meanwhile, or memory is woken at
once, when the driver still clears what was given back.

One JSON object a line: the medians of a turn's cycles, in milliseconds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import NoReturn

from figures import milliseconds, tell

MIB, GIB = 1 << 20, 1 << 30
LARGE, SMALL = 512 * MIB, 2 * MIB
SIZES = (LARGE, SMALL)
WAYS = ("gpupool", "torch-memory-saver")
# Cycles in a turn.
ROUNDS = 3
# Longer than the driver takes to clear what was given back, which is 0.1 s for 64 GiB on an H200.
PAUSE = 0.5


def median(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of the first and of the second of each pair."""
    firsts, seconds = zip(*pairs, strict=True)
    return statistics.median(firsts), statistics.median(seconds)


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


def of_gpupool(nbytes: int, size: int, backup: str | None) -> None:
    """Print what gpupool takes on as many tensors, for each pause; with a backup also the first, and plain copies."""
    arrays = Arrays(nbytes, size)
    if backup:
        sleep, wake = arrays.cycle(backup, 0)
        tell(work="the first of the process", sleep_ms=sleep, wake_ms=wake)
    for pause in pauses(backup):
        sleep, wake = median([arrays.cycle(backup, pause) for _ in range(ROUNDS)])
        tell(pause_s=pause, sleep_ms=sleep, wake_ms=wake)
    if backup:
        import gpupool

        arrays.pool.close()
        del arrays
        gpupool.empty_cache()
        out, back = plain_copies(nbytes)
        tell(work="plain copies", sleep_ms=out, wake_ms=back)


def of_memory_saver(nbytes: int, size: int, backup: str | None) -> NoReturn:
    """Print what torch-memory-saver takes on as many tensors, for each pause, and end the process."""
    import torch
    from torch_memory_saver import torch_memory_saver as saver

    saver.hook_mode = "torch"
    with saver.region(tag="all", enable_cpu_backup=backup is not None):
        _tensors = [torch.full((size // 8,), place, device="cuda") for place in range(nbytes // size)]
    torch.cuda.synchronize()
    for pause in pauses(backup):
        pairs = []
        # With a backup of 64 GiB it takes a minute.
        for _ in range(1 if backup else ROUNDS):
            asleep = milliseconds(lambda: saver.pause("all"))
            time.sleep(pause)
            pairs.append((asleep, milliseconds(lambda: saver.resume("all"))))
            torch.cuda.synchronize()
        sleep, wake = median(pairs)
        tell(pause_s=pause, sleep_ms=sleep, wake_ms=wake)
    # It ends the process where memory is freed outside of its region, as at the end of the interpreter.
    os._exit(0)


def measure(way: str, gib: int, size: int, backup: str | None, turn: int) -> None:
    """Print what one way takes in a process of its own; a way that fails says why."""
    command = [sys.executable, __file__, "--gib", str(gib), "--way", way, "--size", str(size)]
    done = subprocess.run(
        [*command, *([] if backup else ["--without-backup"])], capture_output=True, text=True, check=False
    )
    of_all = {"peer": way, "gib": gib, "size": size, "backup": backup is not None, "turn": turn}
    for line in done.stdout.splitlines():
        tell(**of_all, **json.loads(line))
    if done.returncode:
        tell(**of_all, error=done.stderr.strip()[-400:])


def main() -> None:
    """Measure each way in turns, or in this process the one that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, default=0, help="live GiB; by default 32, or half of less memory")
    parser.add_argument("--turns", type=int, default=5, help="turns without a backup")
    parser.add_argument("--without-backup", action="store_true", help="only what copies nothing")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        run = of_gpupool if arguments.way == "gpupool" else of_memory_saver
        run(arguments.gib * GIB, arguments.size, None if arguments.without_backup else "host")
        return
    import gpupool

    # The driver's count, without a context that would hold memory meanwhile.
    total = gpupool.memory_summary().devices[0].total_bytes or 0
    gib = arguments.gib or (32 if total > 36 * GIB else max(1, total // GIB // 2))
    for turn in range(arguments.turns):
        for size in SIZES:
            for way in WAYS:
                measure(way, gib, size, None, turn)
    if not arguments.without_backup:
        for size in SIZES:
            for way in WAYS:
                measure(way, gib, size, "host", 0)


if __name__ == "__main__":
    main()
