"""The command line on the double of a driver: that makes no context to see what devices hold."""

import gpupool
from double import calls
from gpupool.__main__ import main

if __name__ == "__main__":
    gpupool.neighbours = lambda device, pools: []
    assert main(["top", "--once"]) == 0, "the table was not printed"
    made = calls("cuDevicePrimaryCtxRetain"), calls("cuCtxSetCurrent"), calls("cuMemAlloc_v2")
    assert made == (0, 0, 0), f"contexts were made, made current, and memory was allocated: {made}"
