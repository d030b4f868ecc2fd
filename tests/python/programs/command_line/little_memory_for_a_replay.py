"""A replay says that there is no memory for its tables, where the process may have no more."""

import resource

import gpupool
from errors import assert_says, raised
from gpupool import _native

SLOTS = 1 << 28

if __name__ == "__main__":
    gpupool.empty(1).free()
    packed = (SLOTS - 1).to_bytes(4, "little"), (1).to_bytes(8, "little"), bytes(4)
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for replay in (_native.replay, _native.replay_reserved):
        error = raised(gpupool.Unavailable, replay, *packed, SLOTS, 1, "gpupool")
        assert_says(error, f"this process has no memory to replay {SLOTS} allocations")
