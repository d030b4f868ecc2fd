"""What a handler gets, and what it may do: it is never called where gpupool is in use, and nothing is lost."""

import ctypes
import logging
import sys
import threading
import time

import gpupool
from errors import raised
from log_records import listen, next_record, records, wait_for_record
from waiting import wait_for_end


def a_record_tells_when_and_on_which_thread_it_was_made():
    listen(logging.INFO)
    held = threading.Lock()

    class Slow(logging.Filter):
        """Has records wait, so that they are handed over later than they were made."""

        def filter(self, record):
            with held:
                return True

    logging.root.handlers[0].addFilter(Slow())
    with held:
        before = time.time()
        thread = threading.Thread(target=gpupool.simulated.handle, name="worker")
        thread.start()
        # With its handle back, there are as many idle ones as are expected below.
        wait_for_end(thread)
        after = time.time()
        stream = gpupool.Stream()
    record = wait_for_record("handle 1 created")
    assert before <= record.created <= after, f"made between {before} and {after}, told {record.created}"
    assert 0 <= record.msecs < 1000, f"{record.msecs} ms"
    assert abs(record.created * 1000 % 1000 - record.msecs) < 1, f"{record.msecs} ms of {record.created}"
    assert record.name == "gpupool.handle", f"the logger is {record.name}"
    assert record.levelno == logging.INFO, f"the level is {record.levelno}"
    assert record.pathname.endswith(".rs"), f"the file is {record.pathname}"
    assert record.lineno > 0, f"the line is {record.lineno}"

    gpupool.simulated.warm(2)
    found = wait_for_record("handle 2 created").thread
    assert found == threading.get_ident(), f"the thread is {found}, not this one"
    gpupool.simulated.warm(3, background=True)
    name = wait_for_record("handle 3 created").threadName
    assert name.startswith("thread "), f"a thread of gpupool's own is called {name}"

    def lend():
        gpupool.HandlePool("own", lambda: 1, lambda handle: None).lease()
        records.put(wait_for_record("own: handle 1"))

    living = threading.Thread(target=lend, name="living")
    living.start()
    living.join()
    name = next_record("the record of the living thread").threadName
    assert name == "living", f"a thread that lives is called {name}"
    del stream


def a_c_caller_never_waits_for_one(interface):
    """Have a handler that wants what the caller holds, as a framework's allocation holds that framework's locks."""
    prototype = {"without the GIL": ctypes.CFUNCTYPE, "with the GIL": ctypes.PYFUNCTYPE}[interface]
    malloc = prototype(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(gpupool.c_api.malloc)
    locked = threading.Lock()

    class Wanting(logging.Handler):
        """Wants the lock."""

        def emit(self, record):
            with locked:
                records.put(record)

    logging.getLogger().addHandler(Wanting())
    logging.getLogger("gpupool").setLevel(logging.DEBUG)
    for _ in range(20):
        with locked:
            assert malloc(20 << 20, 0, None), "no memory"
    for _ in range(20):
        wait_for_record("grew by")


def one_may_use_gpupool():
    class Using(logging.Handler):
        """Uses all of gpupool."""

        def emit(self, record):
            gpupool.memory_stats(), gpupool.handle_stats(), gpupool.memory_snapshot()
            with gpupool.simulated.lease(gpupool.Stream()):
                gpupool.empty(1 << 20, gpupool.Stream(1)).free()
            gpupool.empty_cache()
            records.put(record)

    logging.getLogger().addHandler(Using())
    logging.getLogger("gpupool").setLevel(logging.INFO)
    gpupool.simulated.handle()
    wait_for_record("handle 1 created")


def one_that_raises_stops_nothing():
    """Have one fail, which is told on stderr, once, as logging does."""

    class Raising(logging.Filter):
        """Fails."""

        def filter(self, record):
            raise RuntimeError("a filter")

    listen(logging.INFO)
    logging.getLogger("gpupool.handle").addFilter(Raising())
    gpupool.simulated.warm(1)
    gpupool.empty(1)
    logging.getLogger("gpupool.runtime").info("own")
    wait_for_record("runtime host")
    pool = gpupool.MemPool(limit=1 << 21)
    with gpupool.use_mem_pool(pool):
        raised(gpupool.OutOfMemory, gpupool.empty, 1 << 22)
    wait_for_record("out of memory")


def more_than_one_can_take_are_lost_and_counted():
    listen(logging.INFO)
    released = threading.Event()
    logging.root.handlers[0].addFilter(lambda record: released.wait())
    numbers = iter(range(1, 100_000))
    gpupool.HandlePool("own", lambda: next(numbers), lambda handle: None).warm(20_000)
    released.set()
    lost = int(wait_for_record("records were lost").getMessage().split()[0])
    assert 1 <= lost <= 20_000 - 8192, f"{lost} of 20000 records are told to be lost"


def the_end_is_quiet_with_threads_at_work():
    listen(logging.DEBUG)
    pool = gpupool.HandlePool("own", lambda: 1, lambda handle: None)

    def work():
        while True:
            pool.warm(1)
            pool.trim()

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    wait_for_record("created")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
