"""A program that takes 60 MiB of gpupool's memory, then does what its argument names."""

import atexit
import contextlib
import os
import sys
import threading

import gpupool

MIB = 1 << 20


def take():
    return [gpupool.empty(3 * MIB) for _ in range(20)]


def well():
    take()


def by_an_error():
    held = take()
    raise ValueError(len(held))


def by_a_number():
    take()
    sys.exit(7)


def late():
    threading.Thread(target=lambda: (threading.main_thread().join(), take())).start()
    atexit.register(lambda: print("the program's own end", file=sys.stderr))


def with_peaks_that_were_reset():
    take()
    gpupool.empty_cache()
    gpupool.reset_peak_stats()


def with_a_recording_of_its_own():
    take()
    gpupool.record_memory_history(None)


def with_a_handle():
    take()
    gpupool.simulated.handle()
    gpupool.empty_pinned(MIB)


def with_requests_that_fail():
    """Fail at once, and after free memory was released in vain."""
    take()
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        held = [gpupool.empty(61 * MIB)]
        for nbytes in (1 << 50, 63 * MIB):
            with contextlib.suppress(gpupool.OutOfMemory):
                held.append(gpupool.empty(nbytes))


def on_two_devices():
    take()
    with gpupool.stream(gpupool.Stream(1)):
        gpupool.empty(MIB)


def with_children():
    """Fork before the first use; the children end as programs do."""
    for code in (0, 3):
        child = os.fork()
        if child == 0:
            take()
            sys.exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    take()


def elsewhere():
    os.chdir("/")
    take()


def nothing():
    pass


if __name__ == "__main__":
    globals()[sys.argv[1]]()
