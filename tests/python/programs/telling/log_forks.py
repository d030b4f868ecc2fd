"""What a forked child logs: its own, and nothing that its parent did."""

import logging
import sys
import threading

import gpupool
from errors import raised
from forking import in_child
from gpupool import _native
from log_records import listen, next_record, records, wait_for_record
from waiting import LONG


def before_the_first_use_each_logs_its_own():
    listen(logging.INFO)

    def work():
        gpupool.simulated.handle()
        name = wait_for_record("handle 1 created").threadName
        assert name == "MainThread", f"the child's thread is called {name}"

    in_child(work)
    gpupool.simulated.handle()
    wait_for_record("handle 1 created")
    in_child(lambda: in_child(lambda: None))


def a_refusal_is_told_once():
    listen(logging.INFO)
    gpupool.simulated.handle()
    wait_for_record("handle 1 created")

    def work():
        for _ in range(3):
            raised(gpupool.Forked, gpupool.simulated.handle)
        record = wait_for_record("refused")
        assert record.name == "gpupool.runtime", f"the logger is {record.name}"
        assert record.threadName == "MainThread", f"the child's thread is called {record.threadName}"
        assert "spawn" in record.getMessage(), f"what helps is not told: {record.getMessage()}"
        _native.end_log(LONG)
        assert records.empty(), f"more was told: {records.get().getMessage()}"

    in_child(work)


def what_the_parent_did_is_not_told():
    listen(logging.INFO)
    begun, released = threading.Event(), threading.Event()
    logging.root.handlers[0].addFilter(lambda record: begun.set() or released.wait())
    gpupool.simulated.handle()
    begun.wait()
    gpupool.simulated.warm(3)

    def work():
        released.set()
        raised(gpupool.Forked, gpupool.simulated.handle)
        told = next_record().getMessage()
        assert "refused" in told, f"the child tells what its parent did: {told}"

    in_child(work)
    released.set()
    wait_for_record("handle 4 created")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
