"""What a start of Python costs with gpupool_enable.pth beside it: without GPUPOOL_ENABLE, and with it.

    python benches/start.py > benches/results/simulated/start.json

Python starts again and again and does nothing, in a virtual environment of its own, by turns without the file, with it,
and with the variable too. A start is measured from outside: the time that passes, and the processor's time, which other
programs on the machine lengthen less. Then ``-X importtime`` tells what a start imports, and how long the module that
reads the file takes, ``site``.
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
STARTS = 1000
IMPORTS = 200


def start(python: Path, variables: dict[str, str]) -> tuple[float, float]:
    """Return the microseconds that a start took, and those of the processor."""
    began = time.perf_counter()
    process = subprocess.Popen([str(python), "-c", "pass"], env=variables)
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"Python ended with {process.returncode}")
    return took * 1e6, (used.ru_utime + used.ru_stime) * 1e6


def imports(python: Path, variables: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Return the modules that a start imports, each with its own microseconds and those with what it imports."""
    command = [str(python), "-X", "importtime", "-c", "pass"]
    said = subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stderr
    lines = [line.removeprefix("import time:").split("|") for line in said.splitlines()[1:]]
    return {name.strip(): (int(own), int(all_of_it)) for own, all_of_it, name in lines}


def summary(values: list[float]) -> dict[str, int]:
    """Return the median and the least of many measurements."""
    return {"median_us": round(statistics.median(values)), "least_us": round(min(values))}


def main() -> None:
    """Print a JSON object."""
    with tempfile.TemporaryDirectory() as name:
        folders = {kind: Path(name) / kind for kind in ("plain", "with")}
        for folder in folders.values():
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        (place,) = folders["with"].glob("lib/*/site-packages")
        for file in ("gpupool_enable.pth", "_gpupool_enable.py"):
            shutil.copy(SOURCES / file, place)
        plain, file = folders["plain"] / "bin" / "python", folders["with"] / "bin" / "python"
        path = {"PATH": os.environ["PATH"]}
        kinds = {
            "without the file": (plain, path),
            "with the file": (file, path),
            "with GPUPOOL_ENABLE=all too": (file, path | {"GPUPOOL_ENABLE": "all"}),
        }
        times = {kind: [] for kind in kinds}
        for _ in range(STARTS):
            for kind, how in kinds.items():
                times[kind].append(start(*how))
        imported = {kind: [] for kind in kinds}
        for _ in range(IMPORTS):
            for kind, how in kinds.items():
                imported[kind].append(imports(*how))
    without = imported["without the file"][0].keys()
    told = {
        "command": "python benches/start.py",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "starts": STARTS,
        "a_start": {
            kind: {"passed": summary([passed for passed, _ in each]), "processor": summary([used for _, used in each])}
            for kind, each in times.items()
        },
        "starts_with_importtime": IMPORTS,
        "importtime": {
            kind: {
                "site": summary([start["site"][1] for start in each]),
                "imported_besides": {
                    module: summary([start[module][1] for start in each]) for module in each[0] if module not in without
                },
            }
            for kind, each in imported.items()
        },
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
