"""What another process has of the device is the others' memory, and no longer once it has ended."""

import subprocess
import sys
from pathlib import Path

import gpupool
from waiting import PATIENCE, wait_until

MIB = 1 << 20


def summary():
    (found,) = gpupool.memory_summary(0).devices
    return found


def main():
    kept = gpupool.empty(1)
    before = summary()
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / "other_process.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "ready\n"
        during = summary()
        other.communicate("\n", timeout=60 * PATIENCE)
    more = during.other_bytes - before.other_bytes
    # Those that ended before this began may give back a part only now.
    assert 500 * MIB <= more <= 4096 * MIB, f"with its context and kernels the other process has {more} bytes"
    assert during.used_bytes == during.total_bytes - during.free_bytes, during
    assert during.reserved_bytes == before.reserved_bytes, "another process's memory is taken for one's own"
    gone = "what a process had that ended is told no more"
    wait_until(lambda: during.other_bytes - summary().other_bytes >= 512 * MIB, gone)
    kept.free()


if __name__ == "__main__":
    main()
