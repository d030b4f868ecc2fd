"""What a profiler is told through NVTX of a program: ranges, names of threads, streams and libraries."""

import logging
import os
import sys
import threading
from pathlib import Path

import gpupool
from errors import raised
from gpupool import _native
from hits import hits
from waiting import wait_until

# What lives until the interpreter lets it go.
kept = []


def use_pools_and_handles():
    gpupool.simulated.handle()
    pool = gpupool.MemPool()
    kept.append(pool)
    with gpupool.use_mem_pool(pool):
        one, two = gpupool.empty(20 << 20), gpupool.empty(20 << 20)
        kept.append(gpupool.empty(20 << 20))
        del one
        gpupool.empty(30 << 20)
    del two
    pool.trim()
    gpupool.simulated.lease().release()
    gpupool.simulated.trim()


def grow():
    kept.append(gpupool.empty(20 << 20))


def fail():
    """Fail in every way that a range may end."""

    def no_handle():
        raise RuntimeError("no handle")

    _native.host_inject("HandleCreate", "other", 0, 1)
    raised(gpupool.Error, gpupool.simulated.handle)
    _native.host_inject("HandleCreate", "out_of_memory", 0, 2)
    raised(gpupool.Error, gpupool.simulated.handle)
    for call in ("ExtentCreate", "MemoryMap"):
        _native.host_inject(call, "other", 0, 1)
        raised(gpupool.Error, gpupool.empty, 20 << 20)
    pool = gpupool.MemPool(limit=8 << 20)
    kept.append(pool)
    with gpupool.use_mem_pool(pool):
        kept.append(gpupool.empty(4 << 20))
        raised(gpupool.Error, gpupool.empty, 8 << 20)
    raised(gpupool.Error, gpupool.HandlePool("own", no_handle, lambda handle: None).handle)


def wait_at_a_limit():
    gpupool.simulated.limit = 1
    with gpupool.simulated.lease():
        raised(gpupool.Error, gpupool.simulated.lease, timeout=0.0)
        waiting = threading.Thread(target=lambda: gpupool.simulated.lease(timeout=60.0).release())
        waiting.start()
        wait_until(lambda: gpupool.simulated.stats().waits == 2, "the thread waits for a handle")
    waiting.join()


def hit():
    """Make requests that tell nothing."""
    hits()
    told = Path(os.environ["NVTX_DOUBLE"])
    before = told.read_text()
    hits()
    assert told.read_text() == before, f"a hit tells {told.read_text().removeprefix(before)}"


def make_a_handle_in_the_background():
    gpupool.simulated.warm(1, background=True)
    wait_until(lambda: gpupool.simulated.stats().idle == 1, "the handle is there")


def load_a_library():
    """Load a library, and print the address of a stream, which has a name."""
    stream = gpupool.Stream()
    gpupool.cublas.handle(stream)
    print(stream.ptr)


def go_on_without():
    gpupool.simulated.handle()
    kept.append(gpupool.empty(1 << 20))
    assert "libprofiler" not in Path("/proc/self/maps").read_text(), "the profiler was loaded though NVTX is off"


def go_on_and_say_why():
    """Say on stdout that no profiler can be used."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    gpupool.simulated.handle()
    kept.append(gpupool.empty(1 << 20))


def begin_at_once():
    together = threading.Barrier(8)

    def work():
        together.wait()
        gpupool.simulated.handle()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
