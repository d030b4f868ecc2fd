"""The provenance of a results file: when and on what machine it was measured, and of which code.

Each folder of benches/results is of one kind of machine. Its measured.json has the provenance by the names of the
files; run.txt has the commands. Newer files also say how that code worked: the instructions of a call, and for each
shipped log the driver calls, the moved pages, and the ratio of reserved to live memory. These are the same on any
machine, so they show without a GPU whether figures are of the present code.

Usage:
    provenance.py                  list the files whose figures the README or a page has
    provenance.py --check          fail if the present code works differently, and say how
    provenance.py code             print the commit, and how the present code works
    provenance.py measured FOLDER  write FOLDER/measured.json for a run on this machine, of the code that code.json has
"""

import datetime
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benches" / "results"
NAME = "measured.json"
# What a replay tells of a log, but for times.
_OF_A_LOG = ("driver_calls", "moved_pages", "ratio")
# How much the instructions of a call may differ.
TOLERANCE = 0.02


def of(file: str) -> dict[str, Any]:
    """Return what is known of a file such as ``h200/peers.json``.

    That is ``date``, ``machine``, ``commit``, and of newer files ``works``, which is what :func:`works` returned.

    Raises:
        KeyError: Its folder's measured.json lacks it.
    """
    folder, name = file.rsplit("/", 1)
    found: dict[str, Any] = json.loads((RESULTS / folder / NAME).read_text())[name]
    return found


def told(file: str) -> str:
    """Return what a page says below the figures of a file: when, where and of which commit they were measured."""
    known = of(file)
    return f"{known['date']}, {known['machine']}, commit {known['commit']}"


def _instructions() -> dict[str, float]:
    """Return the instructions of one call, by subject, of what is built for it; without valgrind there are none."""
    if shutil.which("valgrind") is None:
        return {}
    done = subprocess.run(["bash", ROOT / "benches/instructions.sh"], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _replayed() -> dict[str, float]:
    """Return what the replays of the shipped logs tell, by log and column."""
    logs = sorted(map(str, (ROOT / "tests/data").glob("*.csv.gz")))
    command = [sys.executable, "-m", "gpupool", "replay", "--json", *logs]
    environment = {**os.environ, "GPUPOOL_RUNTIME": "host"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    rows = map(json.loads, done.stdout.splitlines())
    return {f"{row['trace']} {column}": row[column] for row in rows for column in _OF_A_LOG}


@functools.cache
def works() -> dict[str, float]:
    """Return how the code that is here works, by what was counted."""
    return {f"instructions of {subject}": count for subject, count in _instructions().items()} | _replayed()


def differences(file: str) -> list[str]:
    """Return what the code that is here does differently from that which a file's figures are of.

    That is compared as far as the file says how that code worked.
    """
    then: dict[str, float] = of(file).get("works", {})
    now = works() if then else {}

    def differs(what: str) -> bool:
        if what.startswith("instructions"):
            return what not in now or abs(now[what] / then[what] - 1) > TOLERANCE
        return now.get(what) != then[what]

    return [f"{what}: {then[what]} then, {now.get(what, 'unknown')} now" for what in then if differs(what)]


def code() -> dict[str, Any]:
    """Return the commit, and how the code that is here works."""
    head = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], stdout=subprocess.PIPE, text=True)
    return {"commit": head.stdout.strip() or "unknown", "works": works()}


def machine() -> str:
    """Return the GPUs, the driver and the cores of this machine."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        gpus = []
    names = [each.split(", ") for each in gpus]
    cores = f"{len(os.sched_getaffinity(0))} cores"
    if not names:
        return f"no GPU, {cores} ({platform.machine()})"
    count = f"{len(names)} " if len(names) > 1 else ""
    return f"{count}{names[0][0]}, driver {names[0][1]}, {cores}"


def measured(folder: Path, of_code: Path) -> None:
    """Write what is known of each file of a folder that a run on this machine made."""
    known = {"date": datetime.date.today().isoformat(), "machine": machine(), **json.loads(of_code.read_text())}
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in (NAME, "run.txt")]
    (folder / NAME).write_text(json.dumps({path.name: known for path in files}, indent=1) + "\n")


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code."""
    match arguments:
        case ["code"]:
            print(json.dumps(code(), indent=1))
            return 0
        case ["measured", folder]:
            measured(Path(folder), ROOT / "code.json")
            return 0
        case [] | ["--check"]:
            # Not above: that imports this.
            from parts import files

            found = {file: differences(file) if arguments else [] for file in files()}
            for file, differs in found.items():
                print(f"`benches/results/{file}`: {told(file)}", *differs, sep="\n    ")
            if not any(found.values()):
                return 0
            print("The code that is here works differently. CONTRIBUTING.md says how the figures are measured again.")
            return 1
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
