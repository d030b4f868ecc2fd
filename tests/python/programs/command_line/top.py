"""The command line, with processes that are made up: forty on device 0, and one on device 1 that counts the looks."""

import itertools
import os
import sys
from types import SimpleNamespace

import gpupool
from gpupool.__main__ import main

MIB = 1 << 20
# After so many looks the processes cannot be found any more.
MOST_LOOKS = int(os.environ.get("GPUPOOL_LOOKS", "1000000"))
looks = itertools.count(1)


def neighbour(pid, name, device, reserved, pools=None):
    free = reserved // 4
    return SimpleNamespace(
        pid=pid,
        name=name,
        device=device,
        reserved_bytes=reserved,
        live_bytes=reserved - free,
        free_bytes=free,
        asleep_bytes=0,
        discardable_bytes=0,
        offered_bytes=0,
        claimed_bytes=0,
        guarantee=0,
        most=MIB,
        priority=0,
        system_limit=None,
        pools=pools,
        holders=None,
    )


def neighbours(device, pools):
    if device == 0:
        return [neighbour(100 + each, f"worker-{each}", 0, (100 - each) * MIB) for each in range(1, 41)]
    pool = SimpleNamespace(id=(0, 3), given_name=None, reserved_bytes=5 * MIB, live_bytes=MIB)
    look = next(looks)
    if look > MOST_LOOKS:
        raise gpupool.Unavailable("no more looks")
    return [neighbour(7, f"look-{look}", 1, 8 * MIB, pools=[pool] if pools else None)]


if __name__ == "__main__":
    # Libraries that are to be missing.
    sys.modules.update(dict.fromkeys(os.environ.get("WITHOUT", "").split()))
    gpupool.neighbours = neighbours
    sys.exit(main(["top", *sys.argv[1:]]))
