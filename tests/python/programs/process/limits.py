"""What the system, or a table of a fixed size, has no more of is `Unavailable`."""

import sys

import gpupool
from errors import assert_starts, raised


def of_pools():
    def make_pools():
        for _ in range(300):
            gpupool.HandlePool("loop", lambda: 1, lambda handle: None)

    assert_starts(raised(gpupool.Unavailable, make_pools), "a process can have 256 handle pools")
    assert not issubclass(gpupool.Unavailable, ValueError), "what the system lacks counts as the caller's mistake"


def of_threads():
    """Run this with RUST_MIN_STACK so large that no thread starts."""
    error = raised(gpupool.Unavailable, gpupool.host.warm, 1, background=True)
    assert_starts(error, "no thread could be started to warm the host pool")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
