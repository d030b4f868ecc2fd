"""The parts that the memory benches in Python share: how a call is timed, the random mix, lines of results."""

import contextlib
import json
import random
import statistics
import sys
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from concurrent import futures

CALLS = 20_000
ROUNDS = 9
THREADS = (1, 16)
# The mix: requests of 512 bytes to 8 MiB, 100 to 200 of them live in each thread, as in benches/memory.rs.
SIZE_BITS = (9, 23)
WARM_STEPS, STEPS = 500, 2000
# The memory grows in the first round; the figure is the median of all.
MIX_ROUNDS = 5

# A function that allocates this many bytes, and one that frees what the first has returned.
Allocate = Callable[[int], object]
Free = Callable[[object], object]
# A context manager in which a thread does its part.
Peer = Callable[[], contextlib.AbstractContextManager[tuple[Allocate, Free]]]


def tell(**figures: object) -> None:
    """Print one line of results."""
    print(json.dumps(figures), flush=True)


def microseconds(call: Callable[[], object]) -> float:
    """Return how long one call takes."""
    return timeit.timeit(call, number=1) * 1e6


def milliseconds(call: Callable[[], object]) -> float:
    """Return how long one call takes."""
    return microseconds(call) / 1e3


def interpreter() -> dict[str, object]:
    """Return the version of Python, and whether its threads take turns, which an import may have changed."""
    return {"python": sys.version.split()[0], "gil": getattr(sys, "_is_gil_enabled", lambda: True)()}


@contextlib.contextmanager
def measured(peer: str) -> Iterator[None]:
    """Leave out a peer that is not installed, and print why one fails."""
    try:
        yield
    except ImportError:
        return
    except Exception as error:
        tell(peer=peer, error=repr(error))


def nanoseconds(statement: str, **names: object) -> float:
    """Return the median time of a statement, with what looping over it costs."""
    rounds = timeit.repeat(statement, globals=names, number=CALLS, repeat=ROUNDS)
    return round(statistics.median(rounds) / CALLS * 1e9, 1)


def forget(memory: object) -> None:
    """Free memory that goes with its last reference, which is the caller's."""


def in_threads(threads: int, run: Callable[[int, threading.Barrier], float]) -> float:
    """Return the largest number that one of the threads returned. The first failure of a thread ends all."""
    together = threading.Barrier(threads)
    with futures.ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(run, index, together) for index in range(threads)]
        ended = futures.wait(running, return_when=futures.FIRST_EXCEPTION).done
        # The others wait no longer for one that failed.
        together.abort()
        return max(each.result() for each in ended)


def mix(peer: Peer, threads: int) -> float:
    """Return the nanoseconds that a step of the random mix takes: the median of some rounds.

    With several threads it is the slowest one's.
    """

    def run(index: int, together: threading.Barrier) -> float:
        numbers = random.Random(42 + index)
        live: list[object] = []
        with peer() as (allocate, free):

            def step() -> None:
                if len(live) < 100 or (len(live) < 200 and numbers.random() < 0.5):
                    live.append(allocate(int(2 ** numbers.uniform(*SIZE_BITS))))
                else:
                    place = numbers.randrange(len(live))
                    live[place], live[-1] = live[-1], live[place]
                    free(live.pop())

            for _ in range(WARM_STEPS):
                step()
            rounds = []
            for _ in range(MIX_ROUNDS):
                together.wait()
                start = time.perf_counter_ns()
                for _ in range(STEPS):
                    step()
                rounds.append((time.perf_counter_ns() - start) / STEPS)
            together.wait()
            while live:
                free(live.pop())
        return statistics.median(rounds)

    return round(in_threads(threads, run), 1)


def tell_mix(name: str, peer: Peer) -> None:
    """Print what the random mix takes one thread and sixteen."""
    for threads in THREADS:
        tell(peer=name, work="mix", threads=threads, ns_per_step=mix(peer, threads))
