"""Pinned memory from gpupool and from its peers, in one run on one machine, as one JSON object a line.

    python benches/pinned_peers.py [pair] [mix] [ready] [held] [rates] [turnover]

Each way has a process of its own (pinned_peer.py), and they take turns, some rounds each; a figure is that of the best
round: what else the machine does only adds to it, and falls on all alike. A way whose package is not installed is left
out, and one that fails says why.

- pair: nanoseconds for memory that is freed at once, on one thread.
- mix: nanoseconds of a step of the random mix of figures.py, of the slowest of the threads.
- ready: milliseconds until 16 GiB can be used, or a quarter of what the machine has free: `gpupool.warm_pinned`.
- held: MiB taken of the system at the peak of a program, and over what the program has asked for.
- rates: GB/s of copies to and from the device, of a block that gpupool has in extents, and one that it has registered.
- turnover: milliseconds of 64 MiB more and of giving them back, alone and while a kernel of 300 ms runs.

The last lines are ratios: of gpupool's figure to each peer's, and of a framework's over gpupool to its own.
"""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from figures import THREADS, tell
from pinned_peer import WAYS
from pinned_workloads import PROGRAMS, peak_of

MIB, GIB = 1 << 20, 1 << 30
OURS, PLAIN = "gpupool", "cudaHostAlloc"
ROUNDS, LONG_ROUNDS = 9, 3
SIZES = (1024, MIB, 32 * MIB)


class Peer:
    """A process that measures one way."""

    def __init__(self, way: str) -> None:
        program = Path(__file__).with_name("pinned_peer.py")
        self.way = way
        self._process = subprocess.Popen(
            [sys.executable, program, way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._answer("the start")

    def _answer(self, what: object) -> Any:
        line = self._process.stdout.readline()
        if not line:
            said = self._process.stderr.read().strip().splitlines()
            message = f"{what}: {said[-1] if said else 'ended without a word'}"
            raise RuntimeError(message)
        return json.loads(line)

    def measure(self, *what: object) -> Any:
        """Return a figure, or several by their names."""
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._answer(what)

    def end(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


class Run:
    """What was measured, by work and way."""

    def __init__(self) -> None:
        self._rows: list[tuple[dict[str, object], dict[str, float]]] = []
        self._missing: set[str] = set()

    @contextlib.contextmanager
    def peers(self, *but: str):
        """Start a process for each way that there is, and end them."""
        started = []
        for way in WAYS:
            if way in self._missing or way in but:
                continue
            try:
                started.append(Peer(way))
            except RuntimeError as error:
                self._missing.add(way)
                if "ModuleNotFoundError" not in str(error):
                    tell(peer=way, error=str(error))
        try:
            yield started
        finally:
            for peer in started:
                peer.end()

    def tell(self, work: dict[str, object], unit: str, figures: dict[str, float]) -> None:
        """Add a row, and print it."""
        self._rows.append((work, figures))
        for way, figure in figures.items():
            tell(peer=way, **work, **{unit: round(figure, 2)})

    def tell_ratios(self) -> None:
        """Print what gpupool's figures are of the others'."""
        for work, figures in self._rows:
            if OURS in figures:
                ratios = {
                    way: round(figures[OURS] / figure, 3) for way, figure in figures.items() if way != OURS and figure
                }
                tell(peer="ratio of gpupool", **work, to=ratios)
            for framework in ("torch", "cupy"):
                plugged = f"{framework} over gpupool"
                if plugged in figures and figures.get(framework):
                    found = round(figures[plugged] / figures[framework], 3)
                    tell(peer=f"ratio of {plugged}", **work, to={framework: found})


def take_turns(peers: list[Peer], rounds: int, *what: object, best=min) -> dict[str, Any]:
    """Return each peer's best figure, or best figures by their names. A peer that fails says why and is left out."""
    found: dict[str, list[Any]] = {}
    for _ in range(rounds):
        for peer in list(peers):
            try:
                found.setdefault(peer.way, []).append(peer.measure(*what))
            except (RuntimeError, OSError) as error:
                tell(peer=peer.way, error=str(error))
                found.pop(peer.way, None)
                peers.remove(peer)
    return {way: _best(values, best) for way, values in found.items()}


def _best(values: list[Any], best) -> Any:
    if isinstance(values[0], dict):
        return {name: best(value[name] for value in values) for name in values[0]}
    return best(values)


def measure_alone(run: Run, way: str, *what: object) -> dict[str, Any]:
    """Return a way's figure while no other process is there; none where it fails or is not installed."""
    with run.peers(*(other for other in WAYS if other != way)) as peers:
        return take_turns(peers, 1, *what)


def of(figures: dict[str, dict[str, float]], name: str) -> dict[str, float]:
    """Return the figures of one name."""
    return {way: figure[name] for way, figure in figures.items()}


def measure_pair(run: Run) -> None:
    """Measure memory that is freed at once."""
    with run.peers() as peers:
        for size in SIZES:
            run.tell({"work": "pair", "size": size, "threads": 1}, "ns", take_turns(peers, ROUNDS, "pair", size))


def measure_mix(run: Run) -> None:
    """Measure many sizes at a time, from one thread and sixteen. The driver's own takes milliseconds a step."""
    with run.peers(PLAIN) as peers:
        for peer in peers:
            tell(peer=peer.way, **peer.measure("interpreter"))
        for threads in THREADS:
            figures = take_turns(peers, LONG_ROUNDS, "mix", threads)
            run.tell({"work": "mix", "threads": threads}, "ns_per_step", figures)


def available_bytes() -> int:
    """Return what the machine has free."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) << 10


def measure_ready(run: Run) -> None:
    """Measure much memory at once, in new processes."""
    nbytes = min(16 * GIB, available_bytes() // 4 // GIB * GIB) or GIB // 2
    figures: dict[str, list[float]] = {}
    for _ in range(LONG_ROUNDS):
        for way in (OURS, "torch", "cupy", PLAIN):
            for name, figure in measure_alone(run, way, "ready", nbytes).items():
                figures.setdefault(name, []).append(figure)
    best = {way: min(values) for way, values in figures.items()}
    run.tell({"work": "ready", "gib": round(nbytes / GIB, 1)}, "ms", best)


def measure_held(run: Run) -> None:
    """Measure what programs take, one process at a time."""
    for name, program in PROGRAMS.items():
        asked, figures = peak_of(program()) / MIB, {}
        for way in (OURS, "torch", "cupy"):
            figures |= measure_alone(run, way, "held", name)
        work = {"work": f"held by a {name}", "asked_mib": round(asked, 1)}
        run.tell(work, "mib", figures)
        tell(peer="held over asked for", **work, of={way: round(figure / asked, 3) for way, figure in figures.items()})


def measure_rates(run: Run) -> None:
    """Measure copies."""
    with run.peers() as peers:
        for nbytes in (64 * MIB, 512 * MIB):
            figures = take_turns(peers, LONG_ROUNDS, "rates", nbytes, best=max)
            for name in ("to the device", "to the host"):
                run.tell({"work": f"copies {name}", "mib": nbytes // MIB}, "gb_per_s", of(figures, name))


def measure_turnover(run: Run) -> None:
    """Measure growth and giving back."""
    for is_busy in (False, True):
        with run.peers() as peers:
            figures = take_turns(peers, LONG_ROUNDS, "turnover", 64 * MIB, is_busy)
        for name in ("growth", "giving back"):
            run.tell(
                {"work": name, "mib": 64, "while": "a kernel runs" if is_busy else "idle"}, "ms", of(figures, name)
            )


MEASURES = {
    "pair": measure_pair,
    "mix": measure_mix,
    "ready": measure_ready,
    "held": measure_held,
    "rates": measure_rates,
    "turnover": measure_turnover,
}


def main() -> None:
    """Measure what is named, or all."""
    run = Run()
    for name in sys.argv[1:] or MEASURES:
        MEASURES[name](run)
    run.tell_ratios()


if __name__ == "__main__":
    main()
