"""What pages of memory ranges cost on a GPU, beside the driver's own calls, as one JSON object a line.

    python benches/ranges.py [ROUNDS]

- driver: microseconds of its own calls that create, map and open, unmap and release extents of 2 MiB, one and 512 in a
  row, one while a kernel runs, and what mapping takes that another thread has just created.
- commit, decommit: of one page, and of each of 512 in one call: pages that the pool has free at other addresses
  (moved), that are created (new), that a thread made ready before (prepared), and that are there still (again).
- beside a kernel: the same of one page while a kernel runs on the stream, and whether that still runs afterwards.
- pin: 4,096 pages that are all there, and their unpin.

Figures are medians of the rounds, with the least and the most; Python's own call is in them.
"""

import statistics
import sys
from collections.abc import Callable

import gpupool
import numpy as np
from cuda_driver import Driver
from figures import microseconds, tell

PAGE = 2 << 20
MANY = 512
PINNED = 4096


def row(work: str, figures: list[float], pages: int = 1, **more: object) -> None:
    """Print the figures of a work, for each page."""
    each = [figure / pages for figure in figures]
    rounded = {"us": statistics.median(each), "least": min(each), "most": max(each)}
    tell(work=work, pages=pages, **{name: round(figure, 2) for name, figure in rounded.items()}, **more)


def measure_driver(rounds: int) -> None:
    """Measure the driver's own calls for one extent."""
    driver = Driver()
    for beside, count, spins in (("", 1, 0), ("", MANY, 0), (" beside a kernel", 1, 30)):
        many = rounds if count == 1 else max(rounds // 5, 5)
        for name, figures in driver.extent_times(PAGE, count, many, spins).items():
            row(f"driver: {name}{beside}", figures, count)
    for count in (1, MANY):
        made = driver.extent_times(PAGE, count, rounds if count == 1 else max(rounds // 5, 5), in_a_thread=True)
        row("driver: map and open, created by another thread", made["map and open"], count)


def measure_pages(rounds: int, many: int) -> None:
    """Measure commits and decommits of so many pages at once."""
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    ranged = pool.reserve_range(4 * many * PAGE)
    here, there = np.arange(many), np.arange(2 * many, 3 * many)
    # Beside them others stay, as a cache has.
    ranged.commit([many], stream)
    figures: dict[str, list[float]] = {}

    def time_it(work: str, call: Callable[[], object]) -> None:
        figures.setdefault(work, []).append(microseconds(call))

    for _ in range(rounds):
        time_it("commit: new", lambda: ranged.commit(here, stream))
        stream.synchronize()
        time_it("decommit", lambda: ranged.decommit(here, stream))
        time_it("commit: again", lambda: ranged.commit(here, stream))
        ranged.decommit(here, stream)
        stream.synchronize()
        time_it("commit: moved", lambda: ranged.commit(there, stream))
        ranged.decommit(there, stream)
        stream.synchronize()
        time_it("trim", pool.trim)
        ranged.prepare(many)
        while pool.stats().cached_bytes < many * PAGE:
            # No sleep: the first call after one takes longer, whatever it does.
            pass
        ranged.prepare(0)
        time_it("commit: prepared", lambda: ranged.commit(here, stream))
        ranged.decommit(here, stream)
        stream.synchronize()
        pool.trim()
    for work, found in figures.items():
        row(work, found, many)


def measure_beside_a_kernel(rounds: int) -> None:
    """Measure pages that come and go while a kernel runs."""
    driver, pool, stream = Driver(), gpupool.MemPool(), gpupool.Stream()
    ranged = pool.reserve_range(64 * PAGE)
    commits, decommits, still_running = [], [], 0
    for turn in range(rounds):
        pages = [turn % 32]
        ranged.commit([40], stream)
        driver.spin(30)
        commits.append(microseconds(lambda pages=pages: ranged.commit(pages, driver.stream)))
        decommits.append(microseconds(lambda pages=pages: ranged.decommit(pages, driver.stream)))
        still_running += not driver.is_idle()
        driver.synchronize()
        ranged.decommit([40], stream)
    row("commit beside a kernel", commits, still_running=still_running, rounds=rounds)
    row("decommit beside a kernel", decommits, still_running=still_running, rounds=rounds)


def measure_pins(rounds: int) -> None:
    """Measure pins of many pages that are all there."""
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    ranged = pool.reserve_range(PINNED * PAGE)
    pages = np.arange(PINNED)
    ranged.commit(pages, stream, priority=0)
    pins, unpins = [], []
    for _ in range(rounds):
        pins.append(microseconds(lambda: ranged.pin(pages, stream)))
        unpins.append(microseconds(lambda: ranged.unpin(pages, stream)))
    row("pin of 4096 pages", pins)
    row("unpin of 4096 pages", unpins)


def main() -> None:
    """Measure all."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else 50
    gpupool.empty(1)
    measure_driver(rounds)
    measure_pages(rounds, 1)
    measure_pages(max(rounds // 5, 5), MANY)
    measure_beside_a_kernel(rounds)
    measure_pins(rounds)


if __name__ == "__main__":
    main()
