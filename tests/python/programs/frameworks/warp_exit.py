"""A process ends with Warp's arrays and graphs alive, those of the double of Warp, whichever was imported first."""

import importlib
import sys


def main(doubles, first):
    sys.path.insert(0, doubles)
    importlib.import_module(first)
    import gpupool
    import gpupool.warp
    import warp

    gpupool.warp.runtime = lambda: "cuda"
    gpupool.warp.enable()
    # What lives until the interpreter lets the module go.
    warp.alive = alive = [warp.empty(1000 << number, "cuda:1") for number in range(10)]
    for _ in range(2):
        with warp.ScopedCapture() as capture:
            alive.append(warp.empty(1 << 20))
            warp.empty(1 << 20)
        alive.append(capture)
    # This is found by the last collection alone.
    cycle = [warp.empty(1000)]
    cycle.append(cycle)
    assert gpupool.memory_stats().live_blocks == 5, "other blocks than those of two graphs and an array"


if __name__ == "__main__":
    main(*sys.argv[1:])
