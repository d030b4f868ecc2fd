"""What the environment says wrongly about neighbours is told by the calls that need it, and stops no other."""

import sys

import gpupool
from errors import assert_says, assert_starts, raised


def a_variable(name: str) -> None:
    # Memory is there without neighbours.
    gpupool.empty(1).free()
    for call in (gpupool.set_neighbour, gpupool.neighbours, gpupool.available_memory, lambda: gpupool.claim(1)):
        assert_starts(raised(gpupool.InvalidValue, call), f"{name}=")
    assert_starts(raised(gpupool.InvalidValue, gpupool.MemPool, sleeps_for_others=True), f"{name}=")


def a_directory() -> None:
    gpupool.empty(1).free()
    for call in (gpupool.set_neighbour, gpupool.neighbours, gpupool.available_memory, lambda: gpupool.claim(1)):
        assert_says(raised(gpupool.Unavailable, call), "/nowhere", "GPUPOOL_NEIGHBOURS names a directory")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
