"""The instructions of one call of what other benches measure in time, counted by callgrind on the simulated device.

Usage: instructions.py COUNT, where COUNT is the program of benches/count.rs. It prints one JSON object: the
instructions of a call by subject. They are the same in every run, within a fraction of a
percent, so that they say whether code is still what was measured when no GPU is at hand. It needs valgrind.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

# The calls of the first count; the second has twice as many.
CALLS = {"memory": 20_000, "handles": 20_000, "python": 2_000}


def python(calls: int) -> None:
    """Make so many calls of each kind in Python."""
    import gpupool

    stream, pool = gpupool.Stream(), gpupool.simulated
    for _ in range(calls):
        gpupool.empty(1024, stream)
        pool.handle(stream)


def collected(*command: str) -> int:
    """Return the instructions that a command takes from its start to its end."""
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command],
        env={**os.environ, "GPUPOOL_RUNTIME": "host", "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        raise ValueError(f"callgrind does not say what it counted:\n{done.stderr}")
    return int(found[1])


def counts(program: Path) -> dict[str, float]:
    """Return the instructions of one round of calls, by subject."""
    found = {}
    for subject, calls in CALLS.items():
        command = [str(program), subject] if subject != "python" else [sys.executable, __file__, "python"]
        once, twice = (collected(*command, str(calls * factor)) for factor in (1, 2))
        found[subject] = round((twice - once) / calls, 1)
    return found


if __name__ == "__main__":
    if sys.argv[1] == "python":
        python(int(sys.argv[2]))
    else:
        print(json.dumps(counts(Path(sys.argv[1]))))
