"""Draws the memory of two processes over time that are neighbours on one simulated device, as SVG.

Run it with: python docs/hooks/two_processes.py -o FILE.svg

The processes do what is asked of them, one step after the other, and after each step tell what they have. So the
picture is the same each time. It takes the colours of the page, by the classes of style.css.
"""

import argparse
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import gpupool

# The device, and what is taken in one step.
DEVICE, UNIT = 256 << 20, 16 << 20
# The picture: where the axes begin and end, and where the host's memory ends below the device's.
LEFT, RIGHT, TOP, BOTTOM, LOWEST = 70, 750, 40, 270, 313


class Has(NamedTuple):
    """What a process has: live and cached on the device, and asleep on the host."""

    live: int
    cached: int
    asleep: int


class Step(NamedTuple):
    """What both have after a step, and the number of the part of the story that it belongs to."""

    part: int
    notebook: Has
    server: Has


class Actor:
    """A process that does what it is told."""

    def __init__(self, name: str, priority: int) -> None:
        """Start it."""
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        context.Process(target=_act, args=(other, name, priority), daemon=True).start()
        other.close()
        self.ask("tell")

    def ask(self, what: str) -> Has:
        """Have it do something, and return what it has afterwards."""
        self._connection.send(what)
        answer: Has = self._connection.recv()
        return answer


def _act(connection: Any, name: str, priority: int) -> None:
    """Do what is asked: keep memory, take a piece, free the pieces, hold weights that sleep for others, use these."""
    gpupool.set_neighbour(name, priority=priority)
    pool = gpupool.MemPool(sleeps_for_others=True, wakes_on_use=True)
    weights: list[gpupool.DeviceBuffer] = []
    kept: list[gpupool.DeviceBuffer] = []
    pieces: list[gpupool.DeviceBuffer] = []
    while True:
        try:
            what = connection.recv()
        except EOFError:
            return
        match what:
            case "keep":
                kept.append(gpupool.empty(UNIT))
            case "take":
                pieces.append(gpupool.empty(UNIT))
            case "free":
                pieces.clear()
            case "hold":
                weights.append(pool.empty(UNIT))
            case "use":
                with pool:
                    weights[0].fill(1)
        stats = gpupool.memory_stats()
        live = stats.live_bytes - stats.asleep_bytes
        connection.send(Has(live, stats.reserved_bytes - live, stats.asleep_bytes))


def play() -> Iterable[Step]:
    """Let a notebook and a server have one device."""
    notebook, server = Actor("notebook", -1), Actor("server", 0)
    story: list[tuple[Actor, list[str]]] = [
        (notebook, ["hold"] * 3 + ["take"] * 7 + ["free"] * 2),
        (server, ["keep"] * 6 + ["tell"] * 2),
        (server, ["take"] * 5 + ["free"] * 2),
        (notebook, ["take"] * 5 + ["free"] * 2),
        (server, ["take"] * 7),
        (server, ["take"] * 3 + ["free"] * 4),
        (notebook, ["use"] * 4),
    ]
    for part, (actor, steps) in enumerate(story, 1):
        for what in steps:
            actor.ask(what)
            yield Step(part, notebook.ask("tell"), server.ask("tell"))


def draw(steps: list[Step]) -> str:
    """Return the picture."""
    width = (RIGHT - LEFT) / len(steps)

    def x(step: int) -> float:
        return round(LEFT + width * step, 1)

    def y(nbytes: int) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * nbytes / DEVICE, 1)

    def area(kind: str, opacity: float, low: Callable[[Step], int], high: Callable[[Step], int]) -> str:
        def edge(of: Callable[[Step], int]) -> list[str]:
            return [f"{x(at + side)} {y(of(step))}" for at, step in enumerate(steps) for side in (0, 1)]

        path = " L".join([*edge(high), *reversed(edge(low))])
        return f'  <path class="{kind}" style="fill-opacity:{opacity};stroke-width:.6" d="M{path}Z"/>'

    def edges(step: Step) -> list[int]:
        sizes = (step.notebook.live, step.notebook.cached, step.server.live, step.server.cached)
        return [sum(sizes[:count]) for count in range(5)]

    areas = [
        area(kind, opacity, lambda step, at=place: edges(step)[at], lambda step, at=place: edges(step)[at + 1])
        for place, (kind, opacity) in enumerate([("used", 0.6), ("used", 0.15), ("new", 0.6), ("new", 0.15)])
    ]
    # Below the device's memory.
    areas.append(area("faint", 1, lambda _: 0, lambda step: -step.notebook.asleep))
    first = [at for at, (one, other) in enumerate(pairwise([None, *steps])) if one is None or one.part != other.part]
    marks = [
        f'  <path class="faint" d="M{x(at)} {TOP - 8}V{BOTTOM}"/>'
        f'<text x="{x(at) + 4}" y="{TOP - 6}">{steps[at].part}</text>'
        for at in first
    ]
    scale = [
        f'  <text x="{LEFT - 8}" y="{y(nbytes) + 4}" class="small" text-anchor="end">{nbytes >> 20} MiB</text>'
        for nbytes in range(0, DEVICE + 1, DEVICE // 4)
    ]
    keys = [
        ("used", 0.6, "notebook, live"),
        ("used", 0.15, "cached"),
        ("new", 0.6, "server, live"),
        ("new", 0.15, "cached"),
    ]
    legend = [
        f'  <rect class="{kind}" style="fill-opacity:{opacity}" '
        f'x="{LEFT + at * 130}" y="{LOWEST + 16}" width="14" height="12"/>'
        f'<text x="{LEFT + 20 + at * 130}" y="{LOWEST + 26}" class="small">{said}</text>'
        for at, (kind, opacity, said) in enumerate(keys)
    ]
    title = "Memory of a notebook and a server over time: each gives back what the other needs"
    lines = [
        f'<svg viewBox="0 0 760 {LOWEST + 36}" role="img" aria-labelledby="two-title" '
        'xmlns="http://www.w3.org/2000/svg">',
        f'  <title id="two-title">{title}</title>',
        *areas,
        f'  <path class="line" d="M{LEFT} {TOP}H{RIGHT}M{LEFT} {BOTTOM}H{RIGHT}"/>',
        *marks,
        *scale,
        f'  <text x="{LEFT}" y="{LOWEST}" class="small">below the line: asleep, on the host</text>',
        *legend,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description="Draw two processes' memory over time.")
    parser.add_argument("-o", metavar="FILE", type=Path, required=True)
    file = parser.parse_args().o
    with tempfile.TemporaryDirectory() as folder:
        device, neighbours = Path(folder, "device"), Path(folder, "neighbours")
        for place in (device, neighbours):
            place.mkdir()
        os.environ |= {
            "GPUPOOL_RUNTIME": "host",
            "GPUPOOL_HOST_MEMORY": str(DEVICE),
            "GPUPOOL_HOST_SHARED": str(device),
            "GPUPOOL_NEIGHBOURS": str(neighbours),
            # On a busy machine nobody is passed by.
            "GPUPOOL_NEIGHBOUR_DEADLINE_MS": "4000",
        }
        file.write_text(draw(list(play())))


if __name__ == "__main__":
    main()
