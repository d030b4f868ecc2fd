"""What is to cost no more than in proportion to the devices, with 1, 2, 4, ... of them, as one JSON object a line.

    python benches/devices.py [--counts 1 2 4 8 16] [--rounds 15]

Simulated devices are as many as each count says, GPUs the first ones of the machine (by CUDA_VISIBLE_DEVICES); without
--counts these are the powers of two that it has, and all. In each round each count has a process of its own, which
measures:

- first use: from the import of gpupool to a block on each device, with what the driver does.
- peers of all: `enable_peer_access` of every device for every other one, of which there are n (n - 1).
- memory_stats of every device; info(); empty_cache(), which finds 64 MiB free on every device beside 72 MiB in use, and
  the same among peers, where each of n devices has n mappings of what goes.
- fork: until the parent goes on, and until it knows of the end of the child, which ends at once.
- end of the process: from the last line of the program until its parent knows.

On GPUs first use, forks and the end are measured in a process without gpupool, too, which has as much memory of the
driver on as many devices, peers of each other.

Rows have microseconds, the median of the rounds and the least. The last row of each work has the exponent k of the fit
a + b n^k to the least ones, where n is the number of devices, or of pairs of them, or of mappings: 1 is in proportion,
and 0 is said of what hardly grows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from figures import microseconds, tell

COUNTS = (1, 2, 4, 8, 16)
BLOCK, BLOCKS = 8 << 20, 8
# How often a call is repeated that changes nothing; the least is told.
CALLS = 20
PEERS, AMONG_PEERS = "peers of all", "empty_cache among peers"
# What a work is in proportion to, by its name and their number with so many devices; for the others, the devices.
SIZES: dict[str, tuple[str, Callable[[int], int]]] = {
    PEERS: ("pairs", lambda count: count * (count - 1)),
    AMONG_PEERS: ("mappings", lambda count: count * count),
}
DEVICES = ("devices", int)
# What differs less from one device's is no growth.
NOISE = 0.1
EXPONENTS = [step / 100 for step in range(5, 301)]
# A fit of measurements of what is in proportion is not 1 to the last digit; what all pairs of devices cost is 2.
MOST_EXPONENT = 1.2
PATIENCE = 120


def least(call: Callable[[], object]) -> float:
    """Return what a call that changes nothing takes, without what else the machine does."""
    return min(microseconds(call) for _ in range(CALLS))


def fork() -> tuple[float, float]:
    """Return the microseconds until the parent goes on, and until the child has ended."""
    started = time.perf_counter()
    child = os.fork()
    if not child:
        os._exit(0)
    went_on = time.perf_counter()
    os.waitpid(child, 0)
    return (went_on - started) * 1e6, (time.perf_counter() - started) * 1e6


def forks() -> dict[str, float]:
    """Return what forks take."""
    each = [fork() for _ in range(CALLS)]
    return {
        "fork": statistics.median(parent for parent, _ in each),
        "fork and its child's end": statistics.median(child for _, child in each),
    }


def pairs_of(devices: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return every device with every other one."""
    return list(itertools.permutations(devices, 2))


def measure(count: int) -> dict[str, float]:
    """Return what everything takes in this process."""
    started = time.perf_counter()
    import gpupool

    devices = range(count)
    streams = [gpupool.Stream(device) for device in devices]
    live = [gpupool.empty(BLOCK, stream) for stream in streams]
    figures = {"first use": (time.perf_counter() - started) * 1e6}
    if gpupool.device_count() != count:
        raise RuntimeError(f"{count} devices are to be measured, and {gpupool.device_count()} are there")
    live += [gpupool.empty(BLOCK, stream) for stream in streams for _ in range(BLOCKS)]

    def empty_cache() -> float:
        for buffer in [gpupool.empty(BLOCK, stream) for stream in streams for _ in range(BLOCKS)]:
            buffer.free()
        gpupool.synchronize()
        return microseconds(gpupool.empty_cache)

    figures["empty_cache"] = empty_cache()
    if pairs := pairs_of(devices):
        try:
            figures[PEERS] = microseconds(lambda: [gpupool.enable_peer_access(*pair) for pair in pairs])
            figures[AMONG_PEERS] = empty_cache()
        except gpupool.Error as error:
            print(f"without peers: {error}", file=sys.stderr)
    figures["memory_stats of all"] = least(lambda: [gpupool.memory_stats(device) for device in devices])
    figures["info"] = least(gpupool.info)
    figures |= forks()
    for buffer in live:
        buffer.free()
    return figures


def measure_driver(count: int) -> dict[str, float]:
    """Return what a process takes that has the driver alone."""
    started = time.perf_counter()
    from cuda_driver import Driver

    drivers = [Driver(device) for device in range(count)]
    for driver in drivers:
        driver.allocate(BLOCK)
    figures = {"first use": (time.perf_counter() - started) * 1e6}
    for driver in drivers:
        driver.allocate(BLOCK * BLOCKS)
    for driver, peer in pairs_of(drivers):
        # Where they cannot be, gpupool's are none either.
        with contextlib.suppress(RuntimeError):
            driver.reach(peer)
    return figures | forks()


def process(count: int, variables: dict[str, str], *, of_driver: bool = False) -> dict[str, float]:
    """Return what a new process measures, and how long its end takes."""
    command = [sys.executable, __file__, "--measure", str(count), *(["--driver"] if of_driver else [])]
    started = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
    lines = started.communicate(timeout=PATIENCE)[0].splitlines()
    ended = time.clock_gettime(time.CLOCK_MONOTONIC)
    if started.returncode or len(lines) != 2:
        raise RuntimeError(f"the process of {count} devices ended with {started.returncode}")
    figures: dict[str, float] = json.loads(lines[0])
    figures["end of the process"] = (ended - float(lines[1])) * 1e6
    return {f"{work}, without gpupool": time_ for work, time_ in figures.items()} if of_driver else figures


def environment(count: int, runtime: str) -> dict[str, str]:
    """Return the variables with which a process has so many devices."""
    if runtime == "host":
        return {**os.environ, "GPUPOOL_RUNTIME": "host", "GPUPOOL_HOST_DEVICES": str(count)}
    name = "CUDA_VISIBLE_DEVICES" if runtime == "cuda" else "HIP_VISIBLE_DEVICES"
    visible = os.environ.get(name, "").split(",")
    visible = visible if len(visible) >= count and visible[0] else [str(ordinal) for ordinal in range(count)]
    return {**os.environ, name: ",".join(visible[:count])}


def misfit(points: list[tuple[float, float]]) -> float:
    """Return how far times are from the best a + b x, of what each is, squared and summed; a is not below 0."""
    ones, xs, ts, xxs, xts = (
        sum(value / time_**2 for value, time_ in values)
        for values in zip(*([(1.0, t), (x, t), (t, t), (x * x, t), (x * t, t)] for x, t in points), strict=True)
    )
    slope = (ones * xts - xs * ts) / (ones * xxs - xs * xs)
    start = (ts - slope * xs) / ones
    if start < 0:
        start, slope = 0.0, xts / xxs
    return sum((time_ - start - slope * x) ** 2 / time_**2 for x, time_ in points)


def exponent(times: dict[float, float]) -> float | None:
    """Return the power with which times grow, 0 if they hardly do, None if there are too few to tell."""
    if len(times) < 3:
        return None
    if times[max(times)] < times[min(times)] * (1 + NOISE):
        return 0.0
    return min(EXPONENTS, key=lambda power: misfit([(size**power, time_) for size, time_ in times.items()]))


def is_linear_at_most(times: dict[float, float]) -> bool | None:
    """Return whether times grow no more than in proportion, if there are enough to tell."""
    first, last = min(times), max(times)
    if first == last:
        return None
    found = exponent(times)
    # What two counts say.
    return times[last] / times[first] <= last / first * (1 + NOISE) if found is None else found <= MOST_EXPONENT


def tell_growth(work: str, by_count: dict[int, float]) -> None:
    """Print how a work grows."""
    first, last = min(by_count), max(by_count)
    of, number = SIZES.get(work, DEVICES)
    times = {float(number(count)): time_ for count, time_ in by_count.items()}
    more = (by_count[last] - by_count[first]) / max(1, max(times) - min(times))
    tell(
        work=work,
        devices=f"{first} to {last}",
        exponent=exponent(times),
        of=of,
        last_over_first=round(by_count[last] / by_count[first], 2),
        us_for_each_more=round(more, 1),
        is_linear_at_most=is_linear_at_most(times),
    )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", help="how many devices")
    parser.add_argument("--rounds", type=int, default=15, help="how many processes for each count")
    # What the processes are started with.
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--driver", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps((measure_driver if arguments.driver else measure)(arguments.measure)))
        print(time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)
        return
    import gpupool

    runtime, there = gpupool.runtime(), gpupool.device_count()
    counts = arguments.counts or [*COUNTS]
    if runtime != "host":
        counts = sorted({count for count in counts if count <= there} | ({there} if not arguments.counts else set()))
    rounds: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    for _ in range(arguments.rounds):
        for count in counts:
            try:
                variables = environment(count, runtime)
                figures = process(count, variables)
                if runtime == "cuda":
                    figures |= process(count, variables, of_driver=True)
                rounds[count].append(figures)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                tell(devices=count, error=repr(error))
    works: dict[str, dict[int, list[float]]] = {}
    for count, each in rounds.items():
        for work, time_ in [pair for figures in each for pair in figures.items()]:
            works.setdefault(work, {}).setdefault(count, []).append(time_)
    for work, of_counts in works.items():
        for count, found in of_counts.items():
            us, best = round(statistics.median(found), 1), round(min(found), 1)
            tell(runtime=runtime, work=work, devices=count, us=us, least_us=best, rounds=len(found))
        tell_growth(work, {count: min(found) for count, found in of_counts.items()})


if __name__ == "__main__":
    main()
