"""What a start of Python costs with gpupool_enable.pth beside it: without GPUPOOL_ENABLE, and with it.

    python benches/start.py > benches/results/start/start.json

Python starts again and again and does nothing, in a virtual environment of its own, by turns without the file, with it,
and with the variable too. A start is measured from outside; of each kind the median and the least is told.
"""

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "python"
STARTS = 400


def start(python: Path, **variables: str) -> float:
    """Return the microseconds of a start."""
    environment = {"PATH": os.environ["PATH"], **variables}
    began = time.perf_counter()
    subprocess.run([str(python), "-c", ""], env=environment, check=True)
    return (time.perf_counter() - began) * 1e6


def main() -> None:
    """Print a JSON object."""
    with tempfile.TemporaryDirectory() as name:
        folders = {kind: Path(name) / kind for kind in ("plain", "with")}
        for folder in folders.values():
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        (place,) = folders["with"].glob("lib/*/site-packages")
        for file in ("gpupool_enable.pth", "_gpupool_enable.py"):
            shutil.copy(SOURCES / file, place)
        kinds = {
            "without the file": (folders["plain"], {}),
            "with the file": (folders["with"], {}),
            "with GPUPOOL_ENABLE=all too": (folders["with"], {"GPUPOOL_ENABLE": "all"}),
        }
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(STARTS):
            for kind, (folder, variables) in kinds.items():
                times[kind].append(start(folder / "bin" / "python", **variables))
    found = {
        kind: {"median_us": round(statistics.median(each)), "least_us": round(min(each))}
        for kind, each in times.items()
    }
    told = {"python": platform.python_version(), "cores": os.cpu_count(), "starts": STARTS}
    print(json.dumps({**told, "command": "python benches/start.py", "a_start": found}, indent=1))


if __name__ == "__main__":
    main()
