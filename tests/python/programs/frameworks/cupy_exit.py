"""A process ends with CuPy's arrays alive, and allocates as it ends, whichever of the two packages came first."""

import atexit
import importlib
import sys

# What lives until the interpreter lets it go.
alive = []


class Null:
    """The default stream."""

    ptr = 0


class Late:
    """Allocates when it goes."""

    def __init__(self, empty):
        self.empty = empty

    def __del__(self):
        self.array = self.empty(10)


def main(*order):
    packages = {name: importlib.import_module(name) for name in order}
    cupy, gpupool = packages["cupy"], packages["gpupool"]
    # Without its C function CuPy is asked by this one, which needs no driver.
    del cupy.cuda.stream.__pyx_capi__["get_current_stream"]
    cupy.cuda.get_current_stream = lambda device=-1: Null
    gpupool.cupy.enable()
    pool = gpupool.MemPool()
    scope = gpupool.cupy.using(pool)
    scope.__enter__()
    cycle = [cupy.empty(1000)]
    cycle.append(cycle)
    alive.extend([pool, scope, cupy.empty(1000), cycle, Late(cupy.empty)])
    atexit.register(cupy.empty, 1000)
    live = gpupool.memory_stats().live_blocks
    assert live == 2, f"{live} blocks are alive, not 2"


if __name__ == "__main__":
    main(*sys.argv[1:])
