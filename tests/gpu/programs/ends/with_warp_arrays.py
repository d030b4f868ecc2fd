"""A process ends cleanly with Warp's arrays and graphs alive, whichever package it imported first."""

import importlib
import sys

# What lives until the interpreter lets it go.
alive = []


def main(first):
    importlib.import_module(first)
    import gpupool
    import warp as wp

    wp.config.quiet = True
    gpupool.warp.enable()
    with wp.ScopedDevice("cuda:0"):
        alive.extend(wp.zeros(100_000, dtype=float) for _ in range(30))
        with wp.ScopedCapture() as capture:
            alive.append(wp.clone(alive[0]))
            wp.clone(alive[1])
        wp.capture_launch(capture.graph)
        with wp.ScopedStream(wp.Stream()):
            alive.append(wp.zeros(1000, dtype=float))
    alive.append(capture)
    wp.alive = [wp.zeros(10, dtype=float, device="cuda:0")]
    del alive[3:20]


if __name__ == "__main__":
    main(*sys.argv[1:])
