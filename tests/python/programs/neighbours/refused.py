"""What the environment says wrongly about neighbours is told by the calls that need it, and stops no other."""

import gpupool
from errors import assert_says, assert_starts, raised


def a_variable(name: str) -> None:
    # Memory is there without neighbours.
    gpupool.empty(1).free()
    for call in (gpupool.set_neighbour, gpupool.neighbours, gpupool.available_memory, lambda: gpupool.claim(1)):
        assert_starts(raised(gpupool.InvalidValue, call), f"{name}=")
    assert_starts(raised(gpupool.InvalidValue, gpupool.MemPool, sleeps_for_others=True), f"{name}=")


def a_guarantee_above_the_most() -> None:
    gpupool.empty(1).free()
    said = "GPUPOOL_NEIGHBOUR_GUARANTEE=5 is more than GPUPOOL_NEIGHBOUR_MOST=4, "
    for call in (gpupool.set_neighbour, gpupool.neighbours, gpupool.available_memory, lambda: gpupool.claim(1)):
        assert_starts(raised(gpupool.InvalidValue, call), said)


def a_guarantee_of_the_most() -> None:
    gpupool.claim(0).release()
    (this,) = gpupool.neighbours()
    assert (this.guarantee, this.most) == (4, 4)


def a_directory() -> None:
    gpupool.empty(1).free()
    for call in (gpupool.set_neighbour, gpupool.neighbours, gpupool.available_memory, lambda: gpupool.claim(1)):
        assert_says(raised(gpupool.Unavailable, call), "/nowhere", "GPUPOOL_NEIGHBOURS names a directory")
