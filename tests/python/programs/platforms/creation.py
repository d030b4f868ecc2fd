"""Handles that cannot be created: what is told of it, and what is tried first."""

import sys

import gpupool
from double import error_of, fail
from library_double import LibraryDouble
from waiting import in_thread

# What no header has, or not yet.
UNKNOWN = (925, 1_000_000, -1, -(1 << 31), (1 << 31) - 1)


def every_status_is_told(name, path):
    library = LibraryDouble(name)
    pool, told = library.pool, library.told
    for code, status in told.statuses.items():
        fail(f"{told.create}={code}")
        error = error_of(pool.handle, device=1)
        said = f"{name}: {told.create} failed with {status} ({code}) on device 1, library {path}"
        if code == told.out_of_memory:
            assert error.startswith(f"OutOfMemory out of memory on device 1: {said}"), f"not out of memory: {error}"
        else:
            assert said in error, f"{status} is told as: {error}"
    unknown = [code for code in UNKNOWN if code not in told.statuses]
    for code in unknown:
        fail(f"{told.create}={code}")
        error = error_of(pool.handle, device=1)
        assert f"{name}: {told.create} failed with " in error, f"{code} is told as: {error}"
        assert str(code) in error, f"the number {code} is not told: {error}"
        assert f" on device 1, library {path}" in error, f"{code} is told as: {error}"
    fail()
    assert pool.handle(device=1) != 0, "no handle after the failures"
    assert gpupool.current_device() == 0, "a failure left device 1 current"
    assert pool.stats().failures == len(told.statuses) + len(unknown), "failures are counted wrongly"


def without_memory_idle_handles_go_first(name):
    library = LibraryDouble(name)
    in_thread(library.pool.handle)
    fail(f"{library.told.create}={library.told.out_of_memory}:2")
    assert library.pool.warm(2) == 1, "the handle was not created once there was memory"
    # And what the creation left that was refused, where it leaves anything.
    destroyed = 1 + library.told.leaves_unfinished
    counts = library.pool.stats().destroyed, library.destroyed
    assert counts == (1, destroyed), f"not the idle handle alone was given up for it: {counts}"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
