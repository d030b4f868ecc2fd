"""A process ends cleanly with CuPy's arrays and handles alive, whichever of the two packages it imported first."""

import importlib
import sys
import threading

from waiting import wait_for

# What lives until the interpreter lets it go.
alive = []


def main(order):
    packages = {name: importlib.import_module(name) for name in order.split("-")}
    cupy, gpupool = packages["cupy"], packages["gpupool"]
    gpupool.cupy.enable(handles=True)
    pool = gpupool.MemPool()
    scope = gpupool.cupy.using(pool)
    scope.__enter__()
    inside = cupy.arange(1000)
    cycle = [inside + 1]
    cycle.append(cycle)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        product = cupy.eye(64) @ cupy.eye(64)
    alive.extend([pool, scope, inside, cycle, stream, product])

    def work(started):
        own = [cupy.arange(1000) + 1]
        with cupy.cuda.Stream(non_blocking=True):
            own.append(cupy.eye(8) @ cupy.eye(8))
        started.set()
        threading.Event().wait()

    for _ in range(4):
        started = threading.Event()
        threading.Thread(target=work, args=(started,), daemon=True).start()
        wait_for(started, "the thread has its arrays")


if __name__ == "__main__":
    main(*sys.argv[1:])
