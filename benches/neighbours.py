"""What memory costs that comes from a neighbour, and two trainings on one GPU, as one JSON object a line.

    python benches/neighbours.py [--mib 8192] [--rounds 5] [--trainings 3] [--steps 300] [--turn 100] [--room 1.0]

Two processes are neighbours, and this one holds all memory of the device but what each work is said to have:

- free memory: a request for so many MiB, which another process has free. The driver refuses it at once, the other
  process gives back what is missing, and the driver gives that to the request. Beside it is what the driver itself
  takes to unmap, release, create, map and open as much, in extents as gpupool's. `limit_ms` is 25 ms more than that.
- a pool that sleeps for it: the same, where the other process has a pool in use of that size, which is copied to warm
  pinned memory. `limit_ms` is a copy at 50 GB/s and 25 ms. Beside it is what a copy of as much takes on this machine.
- two trainings: those of examples/torch_training.py, each with its own sentences, where each alone just fits with its
  cache, or in --room times as much: one after the other, and both at once, in turns of so many steps. For a turn a
  training claims the most that it ever has, and its parameters sleep for the other one between its turns. `limit` is
  the most that the ratio is to be, and `errors` has why trainings failed: then the ratio means nothing.

Figures are medians of the rounds, with the least and the most. On a simulated device the driver is left out, and loops
that allocate stand in for the trainings: give a small --mib.
"""

import argparse
import gc
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import gpupool
from cuda_driver import Driver
from figures import measured, tell

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

MIB = 1 << 20
# What gpupool asks the driver for at a time: one of so many parts of a large request, and two pages at least.
PAGE, EXTENT_PARTS = 2 * MIB, 300
# More than the other process gives is free, for what the driver takes itself.
SLACK = 64
# What the driver may not give of the last free memory.
ROUNDING = 16 * PAGE
PIECES = 32
OVER_MS, BYTES_PER_MS, LIMIT_RATIO = 25, 50_000_000, 1.15
# A pool of 8 GiB takes most of the usual 200 ms.
DEADLINE_MS = 10_000
# Who waits longer for its turn waits for ever.
TURN_S = 300

# What a neighbour keeps between calls.
kept: dict[str, Any] = {}


def begin(name: str) -> None:
    """Become a neighbour, with all that the driver takes for a process."""
    gpupool.set_neighbour(name)
    gpupool.empty(1).fill(0)
    let_go()


def cache(nbytes: int) -> int:
    """Have so much memory free, and return what this process has."""
    gpupool.empty(nbytes).free()
    return reserved()


def reserved() -> int:
    """Return what this process has."""
    return gpupool.memory_stats().reserved_bytes


def take(nbytes: int) -> float:
    """Request so much memory, and return the milliseconds that it took."""
    begun = time.perf_counter()
    kept["taken"] = gpupool.empty(nbytes)
    return (time.perf_counter() - begun) * 1e3


def let_go() -> int:
    """Give back all that is free by now, and return what this process has then."""
    kept.pop("taken", None)
    gc.collect()
    gpupool.synchronize()
    gpupool.empty_cache()
    return reserved()


def offer(nbytes: int) -> None:
    """Have a pool that sleeps for others, in use and with known words, and warm pinned memory for it."""
    gpupool.warm_pinned(nbytes)
    kept["pool"] = gpupool.MemPool(sleeps_for_others=True)
    kept["pieces"] = [kept["pool"].empty(nbytes // PIECES) for _ in range(PIECES)]
    for number, piece in enumerate(kept["pieces"]):
        piece.fill(number)
    gpupool.synchronize()


def wake(number: int) -> bool:
    """Wake the pool, and return whether it was asleep and a part of it is as it was."""
    was_asleep = kept["pool"].is_asleep
    kept["pool"].wake()
    piece = kept["pieces"][number % PIECES]
    return was_asleep and bytes(piece).count(number % PIECES) == piece.nbytes


def extent_of(nbytes: int) -> int:
    """Return what gpupool asks the driver for at a time for so much memory."""
    return max(2, nbytes // PAGE // EXTENT_PARTS) * PAGE


def driver_times(nbytes: int, rounds: int) -> list[float]:
    """Return the milliseconds that the driver takes to give back so much memory and to take as much again."""
    extent = extent_of(nbytes)
    times = Driver().extent_times(extent, nbytes // extent, rounds + 1)
    turns = [
        [
            *(times[name][turn] for name in ("unmap", "release")),
            *(times[name][turn + 1] for name in ("create", "map and open")),
        ]
        for turn in range(rounds)
    ]
    return [sum(turn) / 1e3 for turn in turns]


def driver_copies(nbytes: int, rounds: int) -> list[float]:
    """Return the milliseconds in which the driver copies so much memory to pinned memory, by copies of a part."""
    driver = Driver()
    part = nbytes // PIECES
    pinned = driver.allocate_pinned(part)
    rates = [driver.copy_rates(pinned, part, 2)["to the host"] for _ in range(rounds)]
    driver.free_pinned(pinned)
    return [nbytes / rate / 1e6 for rate in rates]


def prepare_training() -> None:
    """Have PyTorch take its memory of gpupool, and do what it does once."""
    if gpupool.runtime() == "cuda":
        gpupool.torch.enable()
        import torch_training

        torch_training.train(torch_training.WARM_UP + 5)


class Turns:
    """A training's turns of so many steps: for each it claims its peak, and between them its memory can sleep."""

    def __init__(self, peak: int, steps: int) -> None:
        self._pool = gpupool.MemPool(sleeps_for_others=True, wakes_on_use=True)
        self._peak, self._steps = peak, steps
        self._turn = ExitStack()

    def begin(self) -> None:
        """Wait for a turn."""
        missing = self._peak - gpupool.memory_stats().live_bytes
        self._turn.enter_context(gpupool.claim(max(0, missing), timeout=TURN_S))
        self._turn.enter_context(gpupool.use_mem_pool(self._pool, all_threads=True))

    def __call__(self, step: int) -> None:
        """End a turn before a step when it is time for that, and wait for the next one."""
        if step and step % self._steps == 0:
            self.end()
            self.begin()

    def end(self) -> None:
        """Let others have their turns."""
        gpupool.synchronize()
        self._turn.close()


def stand_in(steps: int, seed: int, nbytes: int, before_step: "Turns | None") -> None:
    """Have parameters, and in each step other memory, as a training has."""
    chance = random.Random(seed)
    parameters = [gpupool.empty(nbytes // 64) for _ in range(8)]
    for step in range(steps):
        if before_step:
            before_step(step)
        length = chance.uniform(0.05, 1)
        activations = [gpupool.empty(max(1, int(length * nbytes / 64))) for _ in range(24)]
        for buffer in (*parameters, *activations):
            buffer.fill(1)
        gpupool.synchronize()
        del buffer, activations


def train(steps: int, seed: int, nbytes: int, peak: int = 0, turn: int = 0) -> dict[str, Any]:
    """Train, in turns if a peak is given, and return the most memory that it had and what failed."""
    let_go()
    gpupool.reset_peak_stats()
    error = None
    turns = Turns(peak, turn) if peak else None
    try:
        if turns:
            # The parameters, too, are to be memory that can sleep.
            turns.begin()
        if gpupool.runtime() == "cuda":
            import torch_training

            torch_training.train(steps, seed, turns)
        else:
            stand_in(steps, seed, nbytes, turns)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"[:1000]
    if turns:
        turns.end()
    return {"peak": gpupool.memory_stats().peak_reserved_bytes, "error": error}


class Process:
    """Another process, which calls functions of this file."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    def begin(self, work: Callable[..., Any], *arguments: object) -> "Future[Any]":
        """Ask for work."""
        return self._executor.submit(work, *arguments)

    def __call__(self, work: Callable[..., Any], *arguments: object) -> Any:
        """Have work done, and return what it returns."""
        return self.begin(work, *arguments).result()


@contextmanager
def process() -> Iterator[Process]:
    """Start another process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        yield Process(executor)


@contextmanager
def neighbours() -> Iterator[tuple[Process, Process]]:
    """Start two processes that are neighbours."""
    with process() as one, process() as other:
        one(begin, "one")
        other(begin, "other")
        yield one, other


@contextmanager
def room_of(nbytes: int) -> Iterator[None]:
    """Leave others so much of the device meanwhile."""
    free = gpupool.memory_summary(0).devices[0].free_bytes or 0
    if free < nbytes:
        sys.exit(f"the device has {free // MIB} MiB free, and {nbytes // MIB} are needed: give a smaller --mib")
    rest = gpupool.empty(free - nbytes) if free > nbytes else None
    yield
    if rest:
        rest.free()
    gpupool.empty_cache()


def row(work: str, figures: list[float], unit: str = "ms", **more: object) -> None:
    """Print the figures of a work."""
    rounded = {unit: statistics.median(figures), "least": min(figures), "most": max(figures)}
    tell(work=work, rounds=len(figures), **{name: round(figure, 3) for name, figure in rounded.items()}, **more)


def measure_free(nbytes: int, rounds: int) -> None:
    """Measure memory that a neighbour has free."""
    mib, more = nbytes // MIB, {}
    if gpupool.runtime() == "cuda":
        with process() as alone:
            alone(take, 1)
            alone(let_go)
            with room_of(nbytes + nbytes // SLACK):
                times = alone(driver_times, nbytes, rounds)
        row("driver: give back and take again", times, mib=mib, extent_mib=extent_of(nbytes) // MIB)
        more = {"limit_ms": round(statistics.median(times) + OVER_MS, 3)}
    with neighbours() as (giver, taker), room_of(nbytes + nbytes // SLACK):
        times, given = [], []
        for _ in range(rounds):
            before = giver(cache, nbytes)
            times.append(taker(take, nbytes))
            given.append((before - giver(reserved)) / MIB)
            taker(let_go)
    row("free memory", times, mib=mib, given_mib=min(given), **more)


def measure_sleep(nbytes: int, rounds: int) -> None:
    """Measure a pool of a neighbour's that sleeps for the request. The first time is left out."""
    if gpupool.runtime() == "cuda":
        with process() as alone:
            copies = alone(driver_copies, nbytes, rounds)
        row("driver: copy to pinned memory", copies, mib=nbytes // MIB)
    with neighbours() as (giver, taker), room_of(nbytes + nbytes // SLACK):
        giver(offer, nbytes)
        times, right = [], True
        for number in range(rounds + 1):
            times.append(taker(take, nbytes))
            taker(let_go)
            right &= giver(wake, number)
    limit = nbytes / BYTES_PER_MS + OVER_MS
    row("a pool that sleeps for it", times[1:], mib=nbytes // MIB, words_right=right, limit_ms=round(limit, 3))


def measure_trainings(nbytes: int, rounds: int, steps: int, turn: int, times: float) -> None:
    """Measure two trainings in so many times the memory in which each alone just fits."""
    with neighbours() as pair:
        for each in pair:
            each(prepare_training)
        # What stays when a training is over, and what it has at most.
        rests = [each(let_go) for each in pair]
        peaks = [each(train, steps, seed, nbytes)["peak"] for seed, each in enumerate(pair)]
        for each in pair:
            each(let_go)
        most = max(int(times * peak) + rest for peak, rest in zip(peaks, reversed(rests), strict=True))
        room = most - sum(rests) + ROUNDING
        alone, at_once, errors = [], [], []

        def finish(trainings: "list[Future[Any]]") -> float:
            begun = time.perf_counter()
            errors.extend(error for training in trainings if (error := training.result()["error"]))
            return time.perf_counter() - begun

        with room_of(room):
            for _ in range(rounds):
                one_by_one = 0.0
                for seed, each in enumerate(pair):
                    one_by_one += finish([each.begin(train, steps, seed, nbytes)])
                alone.append(one_by_one)
                both = enumerate(zip(pair, peaks, strict=True))
                begun = [each.begin(train, steps, seed, nbytes, peak, turn) for seed, (each, peak) in both]
                at_once.append(finish(begun))
    alone_mib = [peak // MIB for peak in peaks]
    told = {"steps": steps, "turn": turn, "room_mib": (most + ROUNDING) // MIB, "alone_mib": alone_mib}
    row("two trainings: one after the other", alone, "s", **told)
    row("two trainings: both at once", at_once, "s", **told, errors=errors)
    ratios = [both / one for both, one in zip(at_once, alone, strict=True)]
    row("two trainings: both at once, of one after the other", ratios, "ratio", limit=LIMIT_RATIO, failed=len(errors))


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=8192, help="how much memory comes from the neighbour")
    parser.add_argument("--rounds", type=int, default=5, help="how often it comes")
    parser.add_argument("--trainings", type=int, default=3, help="how often both trainings run, or 0")
    parser.add_argument("--steps", type=int, default=300, help="the steps of a training, more than 50")
    parser.add_argument("--turn", type=int, default=100, help="the steps of a turn")
    parser.add_argument("--room", type=float, default=1.0, help="how many times what one of them needs both have")
    arguments = parser.parse_args()
    os.environ.setdefault("GPUPOOL_NEIGHBOUR_DEADLINE_MS", str(DEADLINE_MS))
    with tempfile.TemporaryDirectory() as folder:
        # Only simulated devices look there.
        os.environ["GPUPOOL_HOST_SHARED"] = folder
        measure_free(arguments.mib * MIB, arguments.rounds)
        measure_sleep(arguments.mib * MIB, arguments.rounds)
        if arguments.trainings:
            with measured("two trainings"):
                sizes = (arguments.steps, arguments.turn, arguments.room)
                measure_trainings(arguments.mib * MIB, arguments.trainings, *sizes)


if __name__ == "__main__":
    main()
