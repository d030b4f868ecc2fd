"""A process ends with Numba's arrays alive, whichever of the two packages it imported first."""

import importlib
import sys
import threading

import numpy as np

# What lives until the interpreter lets it go.
alive = []


def main(first):
    if first == "gpupool":
        importlib.import_module("gpupool").numba.enable()
        cuda = importlib.import_module("numba.cuda")
    else:
        cuda = importlib.import_module("numba.cuda")
        importlib.import_module("gpupool").numba.enable()
    alive.extend(cuda.to_device(np.arange(1000)) for _ in range(30))
    alive.append(alive[0][3:4])
    thread = threading.Thread(target=lambda: alive.append(cuda.device_array(100, np.uint8)))
    thread.start()
    thread.join()
    assert len(alive) == 32, "the thread allocated nothing"


if __name__ == "__main__":
    main(*sys.argv[1:])
