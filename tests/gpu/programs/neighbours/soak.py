"""Four processes on a device without memory for all of them: each one's words stay right, whatever the others take.

Each has blocks, a pool that sleeps for others, and a range whose pages may be taken. On a simulated device NumPy writes
and checks the words, on a GPU kernels do.
"""

import ctypes
import multiprocessing
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import gpupool
from waiting import wait_until

MIB = 1 << 20
PAGE = 2 * MIB
PROCESSES = 4

KERNELS = r"""
typedef unsigned long long Word;
extern "C" __global__ void write(Word *words, Word count, Word first) {
  for (Word i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) words[i] = first + i;
}
extern "C" __global__ void check(const Word *words, Word count, Word first, Word *wrong) {
  for (Word i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    if (words[i] != first + i) atomicAdd(wrong, 1ULL);
}
"""


class WordsOfNumPy:
    """Words of simulated memory, each the number of its place from a first one on."""

    def __init__(self):
        import numpy

        self._numpy = numpy
        self.stream = gpupool.Stream()

    def _at(self, address, count):
        return self._numpy.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(address))

    def _numbers(self, count, first):
        return self._numpy.arange(first, first + count, dtype=self._numpy.uint64)

    def write(self, address, count, first):
        self._at(address, count)[:] = self._numbers(count, first)

    def count_wrong(self, address, count, first):
        return self._numpy.count_nonzero(self._at(address, count) != self._numbers(count, first))


class WordsOfCuPy:
    """The same of a GPU's memory, by kernels that need none themselves."""

    def __init__(self):
        import cupy

        self.stream = cupy.cuda.Stream(non_blocking=True)
        module = cupy.RawModule(code=KERNELS)
        self._write, self._check = (module.get_function(name) for name in ("write", "check"))
        self._wrong = cupy.zeros(1, cupy.uint64)
        self._number = cupy.uint64
        cupy.cuda.Device().synchronize()
        # The kernels are loaded while there is memory for them.
        self.write(self._wrong.data.ptr, 1, 0)
        assert self.count_wrong(self._wrong.data.ptr, 0, 0) == 0

    def write(self, address, count, first):
        with self.stream:
            self._write((64,), (256,), (self._number(address), self._number(count), self._number(first)))

    def count_wrong(self, address, count, first):
        with self.stream:
            numbers = (self._number(value) for value in (address, count, first))
            self._check((64,), (256,), (*numbers, self._wrong))
            return int(self._wrong.get()[0])


class Work:
    """What one of the processes has, and what it does with it."""

    def __init__(self, seed, room):
        self.seed, self.room, self.chance = seed, room, random.Random(seed)
        self.words = WordsOfCuPy() if gpupool.runtime() == "cuda" else WordsOfNumPy()
        self.stream = self.words.stream
        self.pools = gpupool.MemPool(), gpupool.MemPool(sleeps_for_others=True, wakes_on_use=True)
        # The blocks of each: the buffer and its first word.
        self.blocks = [], []
        self.range_pool = gpupool.MemPool()
        self.range = self.range_pool.reserve_range(room // 2 // PAGE * PAGE)
        # The first word of each page that is committed, unless it was taken.
        self.pages = {}
        self.count = {"operations": 0, "refused": 0, "taken": 0, "asleep": 0}
        self.callback = self.range.on_discard(self.are_taken)
        most = self.chance.choice([None, room // 3])
        gpupool.set_neighbour(f"soak {seed}", guarantee=room // 32, most=most, priority=seed % 3)

    def are_taken(self, pages):
        self.count["taken"] += len(pages)

    def write(self, address, nbytes):
        """Write words, and return the first one."""
        first = self.chance.randrange(1 << 40)
        self.words.write(address, nbytes // 8, first)
        return first

    def check(self, what, address, nbytes, first):
        wrong = self.words.count_wrong(address, nbytes // 8, first)
        assert wrong == 0, (
            f"process {self.seed}, operation {self.count['operations']}: {wrong} words of {what} are wrong"
        )

    @contextmanager
    def use_of(self, place):
        """Have a pool awake meanwhile."""
        pool = self.pools[place]
        self.count["asleep"] += pool.is_asleep
        with pool:
            yield

    def allocate(self, place):
        """Have one more block of a pool."""
        with self.use_of(place):
            nbytes = 8 * int(2 ** self.chance.uniform(0, (self.room // 64).bit_length()))
            if self.chance.random() < 0.1:
                with gpupool.claim(nbytes):
                    buffer = gpupool.empty(nbytes, self.stream)
            else:
                buffer = gpupool.empty(nbytes, self.stream)
            self.blocks[place].append((buffer, self.write(buffer.ptr, nbytes)))

    def look_at(self, place, is_last=False):
        """Check a block, and free it or not."""
        blocks = self.blocks[place]
        if not blocks:
            return
        with self.use_of(place):
            at = self.chance.randrange(len(blocks))
            blocks[at], blocks[-1] = blocks[-1], blocks[at]
            buffer, first = blocks[-1]
            self.check(f"a block of pool {place}", buffer.ptr, buffer.nbytes, first)
            if is_last or self.chance.random() < 0.5:
                blocks.pop()
                buffer.free(self.stream)

    def pin(self, pages):
        """Return those of the pages that are committed, and so pinned now."""
        bits = self.range.pin(pages, self.stream)
        return [page for place, page in enumerate(pages) if bits[place // 8] >> place % 8 & 1]

    def look_at_pages(self, pages):
        """Check those of the pages that are there; return the others."""
        there = self.pin(pages)
        for page in there:
            self.check(f"page {page}", self.range.ptr + page * PAGE, PAGE, self.pages[page])
        if there:
            self.range.unpin(there, self.stream)
        return [page for page in pages if page not in there]

    def use_pages(self):
        """Check some pages, and have those that are not there."""
        pages = self.chance.sample(range(self.range.nbytes // PAGE), self.chance.randrange(1, 5))
        missing = self.look_at_pages(pages)
        if not missing:
            return
        for page in missing:
            self.pages.pop(page, None)
        self.range.commit(missing, self.stream, priority=self.chance.choice([0, 1, 2, None]))
        # Some may have been taken again.
        there = self.pin(missing)
        for page in there:
            self.pages[page] = self.write(self.range.ptr + page * PAGE, PAGE)
        if there:
            self.range.unpin(there, self.stream)

    def drop_pages(self, count):
        """Check some pages, and decommit them."""
        pages = self.chance.sample(sorted(self.pages), min(count, len(self.pages)))
        self.look_at_pages(pages)
        self.range.decommit(pages, self.stream)
        for page in pages:
            del self.pages[page]

    def give_up(self):
        """Do with less."""
        for place in range(2):
            for _ in range(len(self.blocks[place]) // 2):
                # What wakes it needs memory.
                if self.pools[place].is_asleep:
                    break
                self.look_at(place, is_last=True)
        self.drop_pages(len(self.pages) // 2)

    def do_one(self):
        """Do anything."""
        works = (
            *(lambda place=place: self.allocate(place) for place in (0, 0, 1, 1)),
            *(lambda place=place: self.look_at(place) for place in (0, 1)),
            *[self.use_pages] * 3,
            lambda: self.drop_pages(2),
            gpupool.empty_cache,
            self.stream.synchronize,
            self.pools[1].wake,
        )
        self.count["operations"] += 1
        try:
            self.chance.choice(works)()
        except gpupool.OutOfMemory:
            self.count["refused"] += 1
            # The pool may be put to sleep meanwhile, and there may be no memory for it.
            with suppress(gpupool.OutOfMemory):
                self.give_up()

    def is_awake(self):
        try:
            self.pools[1].wake()
        except gpupool.OutOfMemory:
            return False
        return True

    def end(self):
        """Check all, and free it."""
        while self.blocks[0]:
            self.look_at(0, is_last=True)
        self.drop_pages(len(self.pages))
        while self.blocks[1]:
            # The others need less and less.
            wait_until(self.is_awake, "there is memory for the pool that sleeps")
            with suppress(gpupool.OutOfMemory):
                self.look_at(1, is_last=True)
        self.stream.synchronize()
        gpupool.empty_cache()
        return self.count


kept = {}


def begin(seed, room):
    kept["work"] = Work(seed, room)


def run(operations, seconds):
    until = time.monotonic() + seconds
    work = kept["work"]
    while work.count["operations"] < operations or time.monotonic() < until:
        work.do_one()
    return work.end()


def main(mib, operations, seconds):
    room = mib * MIB
    with ExitStack() as stack:
        context = multiprocessing.get_context("spawn")
        executors = [stack.enter_context(ProcessPoolExecutor(1, context)) for _ in range(PROCESSES)]
        for begun in [executor.submit(begin, seed, room) for seed, executor in enumerate(executors)]:
            begun.result()
        free = gpupool.memory_summary(0).devices[0].free_bytes
        rest = gpupool.empty(free - room) if free > room else None
        counts = [running.result() for running in [executor.submit(run, operations, seconds) for executor in executors]]
    # All that they had is there again.
    gpupool.empty(room // PAGE * PAGE).free()
    del rest
    total = {name: sum(count[name] for count in counts) for name in counts[0]}
    assert total["taken"] + total["asleep"] > 0, "memory was never short"
    print(
        f"soak: {PROCESSES} processes, {total['operations']} operations, of which {total['refused']} found no memory; "
        f"{total['taken']} pages were taken and a pool was found asleep {total['asleep']} times: every word right"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
