"""What gpupool logs of a program's life, written to stdout; the test reads it there."""

import atexit
import logging
import os
import sys
import threading

import gpupool
from errors import raised
from gpupool import _native
from waiting import wait_until


def use():
    """Do something of all that is told at info, and more."""
    gpupool.simulated.handle()
    pool = gpupool.MemPool(limit=64 << 20)
    with gpupool.use_mem_pool(pool):
        kept = gpupool.empty(40 << 20)
        raised(gpupool.OutOfMemory, gpupool.empty, 60 << 20)
        del kept
    pool.trim()
    gpupool.simulated.warm(2)
    gpupool.simulated.trim()


def grow_move_and_give_back():
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        one, two, three = (gpupool.empty(20 << 20) for _ in range(3))
        del one, three
        four = gpupool.empty(30 << 20)
        del two, four
    pool.trim()


def sleep_and_wake():
    pool, registered = gpupool.MemPool(), gpupool.MemPool(no_split=True)
    with gpupool.use_mem_pool(pool):
        buffer = gpupool.empty(5 << 20)
    pool.sleep()
    gpupool.sleep()
    pool.wake()
    del buffer, registered


def find_memory_after_all():
    pool = gpupool.MemPool(limit=32 << 20)
    with gpupool.use_mem_pool(pool):
        kept = [gpupool.empty(20 << 20)]
        callback = gpupool.on_oom(lambda device, nbytes: bool(kept) and not kept.clear())
        gpupool.empty(30 << 20)
    callback.remove()


def fail_to_register():
    """Have a callback of on_segment raise, which Python's own hook is told of too."""
    raised_by = []
    sys.unraisablehook = raised_by.append

    def register(event):
        raise OSError("no room to register")

    pool = gpupool.MemPool(no_split=True)
    with pool.on_segment(register):
        pool.empty(4 << 20)
    assert [type(one.exc_value) for one in raised_by] == [OSError]


def fail_to_register_in_a_thread():
    thread = threading.Thread(target=fail_to_register)
    thread.start()
    thread.join()


def warn_as_the_process_ends():
    """Warn in the first function of atexit, of which gpupool's is the last, in a thread that began before."""
    is_ending = threading.Event()

    def wait_and_fail():
        is_ending.wait()
        fail_to_register()

    thread = threading.Thread(target=wait_and_fail, daemon=True)
    thread.start()

    def warn():
        is_ending.set()
        thread.join()

    atexit.register(warn)


def fail_to_make_a_handle():
    """Fail once for want of memory, which is given back for it, and once for another reason."""
    _native.host_inject("HandleCreate", "out_of_memory", 0, 1)
    gpupool.simulated.handle()
    _native.host_inject("HandleCreate", "other", 0, 1)
    raised(gpupool.LibraryError, gpupool.simulated.lease)


def wait_at_a_limit():
    """Wait once in vain, and once not."""
    gpupool.simulated.limit = 1
    with gpupool.simulated.lease():
        raised(gpupool.PoolExhausted, gpupool.simulated.lease, timeout=0.0)
        waiting = threading.Thread(target=lambda: gpupool.simulated.lease(timeout=60.0).release())
        waiting.start()
        wait_until(lambda: gpupool.simulated.stats().waits == 2, "the thread waits for a handle")
    waiting.join()


def load_a_library():
    gpupool.cublas.handle()
    gpupool.cublas.handle()


def choose_a_runtime():
    gpupool.device_count()


def make_many_handles():
    numbers = iter(range(1, 10_000))
    gpupool.HandlePool("own", lambda: next(numbers), lambda handle: None).warm(3000)


def nothing_unless_asked_for(set_up):
    """Check that no thread is started either."""
    before = set(os.listdir("/proc/self/task"))
    if set_up == "for warnings":
        logging.basicConfig()
    use()
    assert set(os.listdir("/proc/self/task")) == before, "threads were started"


if __name__ == "__main__":
    if sys.argv[1] != "nothing_unless_asked_for":
        level, *sys.argv[2:] = sys.argv[2:]
        logging.basicConfig(level=level, stream=sys.stdout, format="%(levelname)s %(name)s %(message)s")
    globals()[sys.argv[1]](*sys.argv[2:])
