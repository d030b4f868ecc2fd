"""Seven threads allocate, grow, sleep and wake on one GPU while another gets access, and then reads every word."""

import contextlib
import faulthandler
import itertools
import os
import pathlib
import random
import sys
import threading

import cupy
import gpupool
import numpy
from waiting import wait_until

MIB = 1 << 20
THREADS = 7
# How often each thread allocates before access is given, and looks after. Before, none gets further ahead of another:
# the driver's lock is not fair, and a thread that sleeps waits for it more often.
TURNS_BEFORE = 20
TURNS = 60
SIZES = [600 << 10, 3 * MIB, 7 * MIB, 30 * MIB, 70 * MIB]

SOURCE = r"""
typedef unsigned long long word;

extern "C" __global__ void fill(word address, word words, word first) {
  word* place = (word*)address;
  for (word at = blockIdx.x * blockDim.x + threadIdx.x; at < words; at += gridDim.x * blockDim.x) {
    place[at] = first + at;
  }
}

extern "C" __global__ void check(word address, word words, word first, word* wrong) {
  word* place = (word*)address;
  for (word at = blockIdx.x * blockDim.x + threadIdx.x; at < words; at += gridDim.x * blockDim.x) {
    if (place[at] != first + at) atomicAdd(wrong, 1ULL);
    place[at] = first + at + 1;
  }
}
"""
FILL, CHECK = (cupy.RawKernel(SOURCE, name) for name in ("fill", "check"))
BLOCKS, BLOCK = (128,), (256,)


class Block:
    """A buffer that is full of numbers from one on, written by its own GPU."""

    def __init__(self, nbytes: int, stream: gpupool.Stream, first: int) -> None:
        self.buffer = gpupool.empty(nbytes, stream)
        self.first = first
        with cupy.cuda.Device(0), cupy.cuda.ExternalStream(stream.ptr):
            FILL(BLOCKS, BLOCK, self.arguments())
        stream.synchronize()

    def arguments(self) -> tuple[numpy.uint64, ...]:
        return tuple(map(numpy.uint64, (self.buffer.ptr, self.buffer.nbytes // 8, self.first)))

    def wrong_words_on_the_peer(self, stream: gpupool.Stream) -> int:
        """Have the other GPU count the words that are wrong, and write each anew."""
        with cupy.cuda.Device(1), cupy.cuda.ExternalStream(stream.ptr):
            wrong = cupy.zeros(1, dtype=numpy.uint64)
            CHECK(BLOCKS, BLOCK, (*self.arguments(), wrong))
            self.first += 1
            return int(wrong.get()[0])


class Run:
    """What the threads share."""

    def __init__(self) -> None:
        self.enabled = threading.Event()
        self.turned = threading.Condition()
        self.turns = [0] * THREADS
        self.failed: list[BaseException] = []

    def work(self, number: int) -> None:
        try:
            self.take_turns(number)
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Have all threads end."""
        with self.turned:
            self.failed.append(error)
            self.turned.notify_all()

    def end_turn(self, number: int) -> None:
        """Count it, and wait for those that are far behind until there is access."""
        with self.turned:
            self.turns[number] += 1
            self.turned.notify_all()
            self.turned.wait_for(
                lambda: self.enabled.is_set() or self.failed or self.turns[number] < min(self.turns) + TURNS_BEFORE
            )

    def take_turns(self, number: int) -> None:
        chance = random.Random(number)
        own, peer = gpupool.Stream(0), gpupool.Stream(1)
        held: list[Block] = []
        left = TURNS
        pool = gpupool.MemPool(device=0)
        # Every other thread is on the default pool, with the others of its kind.
        scope = gpupool.use_mem_pool(pool) if number % 2 else contextlib.nullcontext()
        for turn in itertools.count():
            if left == 0 or self.failed:
                break
            with scope:
                held.append(Block(chance.choice(SIZES), own, (number << 48) + (turn << 32)))
            if chance.randrange(8) == 0:
                pool.sleep()
                pool.wake()
            if self.enabled.is_set():
                left -= 1
                wrong = [block.wrong_words_on_the_peer(peer) for block in held]
                assert not any(wrong), f"thread {number}, turn {turn}: {wrong} words are wrong on the peer"
            if len(held) > 4:
                held.pop(chance.randrange(len(held)))
            if chance.randrange(16) == 0:
                gpupool.empty_cache()
            self.end_turn(number)
        held.clear()
        pool.close()

    def enable(self) -> None:
        try:
            gpupool.enable_peer_access(0, 1)
        except BaseException as error:
            self.fail(error)
        else:
            with self.turned:
                self.enabled.set()
                self.turned.notify_all()


def tell_where_threads_are(run: Run) -> None:
    """Write what each thread does, and end the process, whose threads may never end."""
    print(f"turns: {run.turns}", file=sys.stderr)
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
    for task in pathlib.Path("/proc/self/task").iterdir():
        # Not of a thread that has just ended.
        with contextlib.suppress(OSError):
            told = [(task / name).read_text().strip() for name in ("comm", "wchan", "syscall")]
            print(task.name, *told, file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    # The kernels are there before the threads are, on both.
    for device in (0, 1):
        stream = gpupool.Stream(device)
        with cupy.cuda.Device(device), cupy.cuda.ExternalStream(stream.ptr):
            nothing = cupy.zeros(1, dtype=numpy.uint64)
            FILL(BLOCKS, BLOCK, (numpy.uint64(nothing.data.ptr), numpy.uint64(0), numpy.uint64(0)))
            CHECK(BLOCKS, BLOCK, (numpy.uint64(0), numpy.uint64(0), numpy.uint64(0), nothing))
        stream.synchronize()
    run = Run()
    threads = [threading.Thread(target=run.work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: run.failed or min(run.turns) >= TURNS_BEFORE, "every thread is at work")
    except AssertionError:
        tell_where_threads_are(run)
    # Each returns once there is access.
    enablers = [threading.Thread(target=run.enable) for _ in range(2)]
    for thread in enablers:
        thread.start()
    for thread in [*enablers, *threads]:
        thread.join()
    assert not run.failed, f"threads failed: {run.failed}"


if __name__ == "__main__":
    main()
