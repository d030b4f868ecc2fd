"""What gpupool logs where Python's threads are replaced, and that its own is gone when a process forks."""

import _thread
import ctypes
import logging
import os
import sys
import threading
import warnings

from waiting import wait_until


def use():
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(name)s %(message)s")
    import gpupool

    gpupool.simulated.handle()
    return gpupool


def under_gevent():
    """Have threads be greenlets, of which one runs while the others wait for it."""
    from gevent import monkey

    monkey.patch_all()
    use()


def where_no_thread_runs():
    """Have no thread of Python's run, as no greenlet does while one calls gpupool."""
    _thread.start_new_thread = lambda function, arguments: 0
    use()


def no_thread_is_left_to_a_fork():
    gpupool = use()
    pool = gpupool.MemPool(no_split=True)
    pool.on_segment(lambda event: 1 / 0)
    sys.unraisablehook = lambda unraisable: None
    pool.empty(1)
    wait_until(lambda: len(os.listdir("/proc/self/task")) == 1, "the thread that logs is gone")
    # Python 3.12 and later warn of a fork of several threads.
    warnings.simplefilter("error")
    if os.fork() == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0


def none_starts_beside_a_fork():
    """Look at what runs just before a fork: in Python 3.11 a child hangs if a thread is becoming Python's then."""
    before_the_fork, handed_over, released, seen = [], [], threading.Event(), []
    # What is registered first is called last.
    os.register_at_fork(before=lambda: before_the_fork.pop()())
    gpupool = use()
    malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(gpupool.c_api.malloc)

    def running():
        return len(os.listdir("/proc/self/task"))

    def wait_until_it_is_gone():
        wait_until(lambda: running() == 1, "the thread that logs is gone")

    def grow():
        assert malloc(20 << 20, 0, None), "no memory"

    def fork(look):
        before_the_fork.append(look)
        if os.fork() == 0:
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0

    wait_until_it_is_gone()
    logging.root.handlers[0].addFilter(lambda record: handed_over.append(record) or released.wait())
    logging.getLogger("gpupool").setLevel(logging.DEBUG)
    warnings.simplefilter("ignore")
    # The interpreter goes to another thread only where this one waits.
    sys.setswitchinterval(1000)
    grow()
    fork(lambda: seen.append((len(sys._current_frames()), running())))
    assert seen == [(2, 2)], f"(those that run Python, threads) are {seen[0]}: one is starting"
    released.set()
    wait_until_it_is_gone()

    handed_over.clear()
    fork(lambda: grow() or seen.append(running()))
    assert seen[1:] == [1], "a thread was started"
    sys.setswitchinterval(0.001)
    wait_until(lambda: handed_over, "what was told meanwhile is handed over")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
