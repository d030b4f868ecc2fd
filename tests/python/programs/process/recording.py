"""The recording of history in a process that forks, or ends while threads record."""

import os
import threading

import gpupool
from forking import assert_refused, exit_code_of
from waiting import wait_until

# What lives until the interpreter lets it go.
kept = []


def trace():
    """Return the events of device 0."""
    return gpupool.memory_snapshot()["device_traces"][0]


def a_forked_child_does_not_record_and_ends():
    stream = gpupool.Stream()
    gpupool.record_memory_history()
    gpupool.simulated.handle()
    kept.append(gpupool.empty(1000, stream))
    lent = gpupool.simulated.lease()
    child = os.fork()
    if child == 0:
        assert_refused(
            gpupool.record_memory_history, gpupool.memory_snapshot, lambda: gpupool.record_memory_history(None)
        )
        del lent
        kept.clear()
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        raise SystemExit(0)
    assert exit_code_of(child) == 0, "the child failed"
    assert len(trace()) > 0, "the parent has recorded nothing"


def a_child_forked_before_the_first_use_records():
    gpupool.record_memory_history()
    child = os.fork()
    kept.append(gpupool.empty(1000))
    found = [entry["action"] for entry in trace()]
    who = "parent" if child else "child"
    assert found == ["segment_map", "alloc", "snapshot"], f"the {who} has recorded {found}"
    if child:
        assert exit_code_of(child) == 0, "the child failed"


def the_process_ends_while_threads_record():
    gpupool.record_memory_history()
    stream = gpupool.Stream()
    kept.extend(gpupool.empty(1000, stream) for _ in range(1000))
    ready = threading.Barrier(5)

    def work():
        ready.wait()
        gpupool.simulated.handle()
        while True:
            gpupool.empty(1000, stream)

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    ready.wait()
    wait_until(lambda: len(trace()) >= 5000, "threads have recorded 5000 events")
