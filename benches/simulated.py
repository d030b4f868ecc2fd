"""Compares the simulation of PyTorch's allocator with what PyTorch's own measured.

    python benches/simulated.py FOLDER > benches/results/simulated/peaks.json

FOLDER has logs of allocations, `<workload>-<seed>.csv.gz`, and `peaks-h200.jsonl`: a line for each run of PyTorch 2.11
on an H200, with its `workload`, `seed`, `conf` (that of PYTORCH_CUDA_ALLOC_CONF) and `peak_reserved`.
"""

import json
import sys
from pathlib import Path

from gpupool._traces import pytorch, trace


def main(folder: Path) -> None:
    """Print a JSON object: each log with its peaks, and the largest deviation."""
    measured = [json.loads(line) for line in (folder / "peaks-h200.jsonl").read_text().splitlines()]
    rows = []
    for path in sorted(folder.glob("*.csv.gz")):
        name = path.name.removesuffix(".csv.gz")
        workload, seed = name.rsplit("-", 1)
        runs = [run for run in measured if (run["workload"], run["seed"]) == (workload, int(seed))]
        log = trace.read(str(path)) if any("peak_reserved" in run for run in runs) else None
        for run in runs:
            if log is None or "peak_reserved" not in run:
                continue
            found = pytorch.simulate(log, expandable="expandable_segments:True" in run["conf"])
            rows.append(
                {
                    "trace": name,
                    "conf": run["conf"],
                    "events": log.events,
                    "measured": run["peak_reserved"],
                    "simulated": found.peak_reserved,
                    "deviation": round(found.peak_reserved / run["peak_reserved"] - 1, 6),
                }
            )
    largest = max(rows, key=lambda row: abs(row["deviation"]))
    told = {"measured_on": "H200, PyTorch 2.11", "command": "python benches/simulated.py FOLDER", "rows": rows}
    print(json.dumps({**told, "largest_deviation": largest["deviation"]}, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
