"""Warp's kernels for the tests, in a file of their own, for Warp reads their source."""

import warp as wp

wp.config.quiet = True
wp.set_module_options({"enable_backward": False})


@wp.kernel
def fill(out: wp.array(dtype=wp.int32), value: wp.int32):
    """Set all numbers to one."""
    out[wp.tid()] = value


@wp.kernel
def add(one: wp.array(dtype=wp.int32), other: wp.array(dtype=wp.int32), out: wp.array(dtype=wp.int32)):
    """Add two arrays."""
    i = wp.tid()
    out[i] = one[i] + other[i]


@wp.kernel
def slow_copy(source: wp.array(dtype=wp.int32), out: wp.array(dtype=wp.int32), rounds: wp.int32):
    """Copy an array of equal numbers, reading each late."""
    i = wp.tid()
    waited = wp.int32(0)
    for turn in range(rounds):
        waited = waited * 1664525 + turn + i
    # The place depends on the loop, so that it is read after it.
    out[i] = source[wp.where(waited == 123456789, 0, i)]
