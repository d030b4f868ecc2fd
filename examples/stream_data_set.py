"""A data set larger than the GPU's memory, streamed through pinned memory, each word checked on the GPU.

Loaders write pieces of it into pinned memory, as a program does that reads them from disks, and asynchronous copies
bring them to the GPU. No loader waits for the copy of its piece: a piece's memory is freed as soon as its copy is
submitted, and gpupool reuses it once that copy is done. At the end it prints the rate that was reached, and the rate of
copies alone.

Run it with: python examples/stream_data_set.py [--limit-gib 8] [--gib 10]

--limit-gib is how much of the GPU's memory the program may use; all of it by default. --gib is the size of the data
set; a quarter more than that by default. It needs CuPy, unless devices are simulated (GPUPOOL_RUNTIME=host).
"""

import argparse
import itertools
import os
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import gpupool
import numpy as np

GIB, MIB = 1 << 30, 1 << 20
# A loader may be so many copies ahead of the GPU.
AHEAD = 2


class Gpu:
    """CuPy's device: a stream of each loader, and pieces that are copied there and checked."""

    piece_bytes = 64 * MIB

    def __init__(self, limit):
        import cupy

        self._cupy = cupy
        # What the GPU computes with is gpupool's memory too.
        gpupool.cupy.enable()
        self.memory_bytes = cupy.cuda.Device().mem_info[1]
        # A loader has a piece, what it should be, and their difference at a time, and all of that has to fit.
        fitting = (limit or self.memory_bytes) // (3 * self.piece_bytes)
        self.loaders = max(1, min(16, os.cpu_count() or 1, fitting))
        self._places = cupy.arange(self.piece_bytes // 8, dtype=cupy.uint64)
        cupy.cuda.Device().synchronize()

    def stream(self):
        """Return a stream."""
        return self._cupy.cuda.Stream(non_blocking=True)

    def count(self, stream):
        """Return a place where a stream counts wrong words."""
        with stream:
            return self._cupy.zeros((), dtype=self._cupy.int64)

    def check(self, words, first, wrong, stream):
        """Copy words to the GPU, and count those there that are not first, first + 1, ...: all in the background."""
        with stream:
            there = self._cupy.empty(words.size, dtype=np.uint64)
            there.set(words, stream=stream)
            wrong += self._cupy.count_nonzero(there - self._places[: words.size] != np.uint64(first))

    def event(self, stream):
        """Return an event after a stream's work so far."""
        return stream.record()

    def best_rate(self):
        """Return the bytes a second that copies alone reach."""
        stream, count = self.stream(), 32
        words = np.frombuffer(gpupool.empty_pinned(self.piece_bytes, stream), np.uint64)
        with stream:
            there = self._cupy.empty(words.size, dtype=np.uint64)
            there.set(words, stream=stream)
            start = stream.record(self._cupy.cuda.Event())
            for _ in range(count):
                there.set(words, stream=stream)
            end = stream.record(self._cupy.cuda.Event())
        end.synchronize()
        return count * self.piece_bytes / self._cupy.cuda.get_elapsed_time(start, end) * 1e3


class SimulatedGpu:
    """A simulated device, whose memory is this process's: the same program in short."""

    piece_bytes = MIB
    loaders = 2
    memory_bytes = 16 * MIB

    class _Done:
        def synchronize(self):
            """Return at once: copies are done when they return."""

    def stream(self):
        """Return a stream."""
        return gpupool.Stream()

    def count(self, stream):
        """Return a place where a stream counts wrong words."""
        return np.zeros((), dtype=np.int64)

    def check(self, words, first, wrong, stream):
        """Copy words to the device, and count those there that are not first, first + 1, ..."""
        there = np.from_dlpack(gpupool.empty(words.nbytes, stream)).view(np.uint64)
        there[:] = words
        wrong += np.count_nonzero(there - np.arange(words.size, dtype=np.uint64) != np.uint64(first))

    def event(self, stream):
        """Return an event after a stream's work so far."""
        return self._Done()

    def best_rate(self):
        """Return the bytes a second that copies alone reach."""
        words = np.frombuffer(gpupool.empty_pinned(self.piece_bytes), np.uint64)
        there = np.from_dlpack(gpupool.empty(self.piece_bytes)).view(np.uint64)
        there[:] = words
        start = time.perf_counter()
        for _ in range(32):
            there[:] = words
        return 32 * words.nbytes / (time.perf_counter() - start)


class Progress:
    """A bar of plain text: on a terminal one line that grows, elsewhere a line for every quarter."""

    def __init__(self, total):
        self._total, self._done, self._told = total, 0, -1
        self._lock, self._start = threading.Lock(), time.perf_counter()

    def add(self, nbytes):
        """Count bytes."""
        with self._lock:
            self._done += nbytes
            part = self._done / self._total
            is_terminal = sys.stdout.isatty()
            step = int(part * (100 if is_terminal else 4))
            if step == self._told:
                return
            self._told = step
            rate = self._done / (time.perf_counter() - self._start) / 1e9
            bar = "#" * int(part * 40)
            end = "\r" if is_terminal and part < 1 else "\n"
            print(f"[{bar:<40}] {part:4.0%}  {rate:5.1f} GB/s", end=end, flush=True)


def stream_through(gpu, total):
    """Stream a data set of so many bytes through the GPU. Return the seconds, and how many words were wrong."""
    pieces = itertools.count()
    places = np.arange(gpu.piece_bytes // 8, dtype=np.uint64)
    progress = Progress(total)

    def load():
        stream, copies = gpu.stream(), deque()
        wrong = gpu.count(stream)
        while (start := next(pieces) * gpu.piece_bytes) < total:
            words = np.frombuffer(gpupool.empty_pinned(min(gpu.piece_bytes, total - start), stream), np.uint64)
            np.add(places[: words.size], np.uint64(start // 8), out=words)
            gpu.check(words, start // 8, wrong, stream)
            progress.add(words.nbytes)
            # Frees the pinned memory, which is used again once the stream has copied it.
            del words
            copies.append(gpu.event(stream))
            if len(copies) > AHEAD:
                copies.popleft().synchronize()
        for copy in copies:
            copy.synchronize()
        return int(wrong)

    # The first pieces find pinned memory ready.
    gpupool.warm_pinned(gpu.loaders * (AHEAD + 1) * gpu.piece_bytes)
    begin = time.perf_counter()
    with ThreadPoolExecutor(gpu.loaders) as executor:
        wrong = sum(executor.map(lambda _: load(), range(gpu.loaders)))
    return time.perf_counter() - begin, wrong


def main():
    """Stream a data set, check it, and print the rates."""
    parser = argparse.ArgumentParser(description="Stream a data set larger than the GPU's memory.")
    parser.add_argument("--limit-gib", type=float, help="the GPU's memory that the program may use; all by default")
    parser.add_argument("--gib", type=float, help="the size of the data set; a quarter more than that by default")
    arguments = parser.parse_args()
    limit = int(arguments.limit_gib * GIB) if arguments.limit_gib else None
    gpu = SimulatedGpu() if gpupool.runtime() == "host" else Gpu(limit)
    memory = limit or gpu.memory_bytes
    # Whole words.
    total = int(arguments.gib * GIB if arguments.gib else memory * 1.25) // 8 * 8
    gpupool.set_per_process_memory_fraction(min(1, memory / gpu.memory_bytes))
    print(f"{total / GIB:.2f} GiB through {memory / GIB:.2f} GiB of the GPU's memory, by {gpu.loaders} loaders")
    seconds, wrong = stream_through(gpu, total)
    reached, possible = total / seconds, gpu.best_rate()
    print(f"{wrong} wrong words")
    print(
        f"{reached / 1e9:.1f} GB/s of the {possible / 1e9:.1f} GB/s of copies alone: {reached / possible:.0%}; "
        f"pinned memory: {gpupool.pinned_stats().peak_reserved_bytes / MIB:.0f} MiB"
    )
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
