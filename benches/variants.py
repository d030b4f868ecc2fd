"""How much is reserved over what is live, at most, on logs that the recorded programs could as well have left.

    python benches/variants.py FOLDER [--seeds 16] [--first 0] > benches/results/simulated/variants.txt

A policy that rests on the sizes of the logs at hand shows here. In a variant of each log of FOLDER, `*.csv.gz`, every
size of 1 MiB and more is scaled by its own factor within 3 %, so that equal sizes stay equal, and some neighbouring
frees change places. Each is replayed by a process of its own on the simulated device, and by the simulation of
PyTorch's expandable segments. Prints a line for each variant, and at last for each log.
"""

import argparse
import csv
import functools
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

FIELDS = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"]
Row = dict[str, str]
LARGE = 1 << 20
"""Sizes from here on are scaled."""


def variant(rows: list[Row], seed: str) -> list[Row]:
    """Return the rows of a log that the same program could have left."""
    chance = random.Random(seed)
    factors: dict[int, float] = {}
    sizes: dict[str, int] = {}
    varied: list[Row] = []
    for row in rows:
        size = int(row["Size"])
        if row["Action"] == "allocate":
            if size >= LARGE:
                size = round(size * factors.setdefault(size, 1 + chance.uniform(-0.03, 0.03)) / 512) * 512
            sizes[row["Pointer"]] = size
        elif row["Pointer"] in sizes:
            size = sizes.pop(row["Pointer"])
        else:
            continue
        varied.append({**row, "Size": str(size)})
    for one in range(len(varied) - 1):
        if varied[one]["Action"] == varied[one + 1]["Action"] == "free" and chance.random() < 0.3:
            varied[one], varied[one + 1] = varied[one + 1], varied[one]
    return varied


def write_variant(log: Path, seed: str, path: Path) -> None:
    """Write a variant of a log."""
    with gzip.open(log, "rt") as file:
        rows = variant(list(csv.DictReader(file)), seed)
    with path.open("w") as file:
        writer = csv.DictWriter(file, FIELDS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def figure(log: Path, number: int) -> tuple[str, float, float, int]:
    """Return a variant's name, what gpupool and expandable segments reserve over what is live, and driver calls."""
    from gpupool._traces import pytorch, trace

    host = {**os.environ, "GPUPOOL_RUNTIME": "host", "GPUPOOL_HOST_MEMORY": str(141 << 30)}
    name = log.name.removesuffix(".csv.gz")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}-{number}.csv"
        write_variant(log, f"{name} {number}", path)
        command = [sys.executable, "-m", "gpupool", "replay", str(path), "--json"]
        told = subprocess.run(command, env=host, check=True, capture_output=True, text=True).stdout
        found = json.loads(told)
        expandable = pytorch.simulate(trace.read(str(path)), expandable=True).peak_reserved / found["peak_live"]
        return path.stem, found["ratio"], expandable, found["driver_calls"]


def main() -> None:
    """Print what each variant of each log needs."""
    parser = argparse.ArgumentParser(description="How much is reserved over what is live, on variants of logs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    print("reserved over live: gpupool's, expandable segments', driver calls", flush=True)
    ends = []
    numbers = range(arguments.first, arguments.first + arguments.seeds)
    for log in sorted(arguments.folder.glob("*.csv.gz")):
        found = []
        with ProcessPoolExecutor() as processes:
            for name, ratio, expandable, calls in processes.map(functools.partial(figure, log), numbers):
                print(f"{name} {ratio:.4f} {expandable:.4f} {calls}", flush=True)
                found.append((ratio, ratio / expandable, calls))
        ratios, parts, calls = zip(*found, strict=True)
        ends.append(
            f"{log.name.removesuffix('.csv.gz')}: {min(ratios):.4f} to {max(ratios):.4f}, of expandable's "
            f"{min(parts):.4f} to {max(parts):.4f}, driver calls {statistics.median(calls):.0f} in the median"
        )
    print("\n".join(ends))


if __name__ == "__main__":
    main()
