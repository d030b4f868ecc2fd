"""Peers that take turns: each is a process of its own, and in each round all have the same processors.

So whatever else the machine does affects all of them, and the ratio of two figures of a round depends on these peers
alone.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from figures import interpreter


class Peer:
    """A process that measures one way, as a program of this folder does that calls :func:`answer`."""

    def __init__(self, program: str, way: str, environment: Mapping[str, str] = os.environ) -> None:
        self.way = way
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name(program), way],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, *what: object) -> Any:
        """Return a figure, or what else is asked for."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            message = f"{self.way}: the process ended with status {self._process.wait()} at {what}"
            raise RuntimeError(message)
        return json.loads(line)

    def end(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


def take_turns(peers: list[Peer], rounds: int, *what: object, processors: int = 0) -> dict[str, list[float]]:
    """Return each peer's figures, on so many processors, other ones in each round; 0 for all."""
    there = sorted(os.sched_getaffinity(0))
    count = processors or len(there)
    figures: dict[str, list[float]] = {peer.way: [] for peer in peers}
    for turn in range(rounds):
        chosen = [there[(turn * count + place) % len(there)] for place in range(count)]
        for peer in peers:
            peer.measure("use_processors", chosen)
            figures[peer.way].append(peer.measure(*what))
    return figures


def ratio(figures: list[float], of: list[float]) -> float:
    """Return the median of the rounds' ratios: two figures of one round were taken while the machine was as quick."""
    return round(statistics.median(figure / other for figure, other in zip(figures, of, strict=True)), 3)


class Measures:
    """What every peer can do; its own measures are methods beside."""

    def use_processors(self, processors: list[int]) -> None:
        """Have every thread of the process run on these processors."""
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), processors)

    def interpreter(self) -> dict[str, object]:
        """Return what Python the process has."""
        return interpreter()


def answer(make: Callable[[str], Measures]) -> None:
    """Measure what is asked until there is no more.

    Each line read is a JSON list, the name of a measure and its arguments; each line written is its result.
    """
    # What the programs print is not a result.
    results, sys.stdout = sys.stdout, sys.stderr
    measures = make(sys.argv[1])
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        measure: Callable[..., object] = getattr(measures, name)
        print(json.dumps(measure(*arguments)), file=results, flush=True)
