"""What gpupool logs where Python's threads are replaced, and that its own is gone when a process forks."""

import _thread
import logging
import os
import sys
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


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
