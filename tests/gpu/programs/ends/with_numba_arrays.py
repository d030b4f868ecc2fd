"""A process ends cleanly with Numba's arrays alive, beside PyTorch's, whichever package it imported first."""

import importlib
import sys
import threading

from waiting import wait_for

# What lives until the interpreter lets it go.
alive = []


def main(order):
    packages = {name: importlib.import_module(name) for name in order.split(", ")}
    numpy = importlib.import_module("numpy")
    packages["gpupool"].numba.enable()
    cuda = importlib.import_module("numba.cuda")
    alive.extend(cuda.to_device(numpy.arange(100000)) for _ in range(30))
    alive.append(alive[0][10:20])
    alive.append(packages["torch"].eye(64, device="cuda"))

    def work(started):
        alive.append(cuda.device_array(1000))
        started.set()
        threading.Event().wait()

    started = threading.Event()
    threading.Thread(target=work, args=(started,), daemon=True).start()
    wait_for(started, "the thread has its array")
    del alive[3:20]


if __name__ == "__main__":
    main(*sys.argv[1:])
