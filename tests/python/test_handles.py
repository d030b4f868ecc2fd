"""A thread's handles, from Python."""

import queue
import threading

import gpupool
from gpupool import _native
from waiting import wait_for


def handle_stream(handle):
    """Return the stream that is set on a handle of the simulated library."""
    return _native.host_stream_of(handle)


def test_a_thread_gets_the_same_handle_with_the_stream_set():
    first, second = gpupool.Stream(), gpupool.Stream()
    handle = gpupool.simulated.handle(first)
    assert handle_stream(handle) == first.ptr
    assert gpupool.simulated.handle(second) == handle
    assert handle_stream(handle) == second.ptr
    assert gpupool.simulated.handle() == handle
    assert handle_stream(handle) == 0


def test_stats_add_up(make_pool):
    pool = make_pool()
    assert pool.stats().as_dict() == {
        "created": 0,
        "destroyed": 0,
        "discarded": 0,
        "idle": 0,
        "held": 0,
        "leased": 0,
        "peak_in_use": 0,
        "hits": 0,
        "misses": 0,
        "hand_overs": 0,
        "waits": 0,
        "failures": 0,
        "create_seconds": 0.0,
        "device_bytes": 0,
        "peak_device_bytes": 0,
        "workspace_bytes": 0,
    }
    for _ in range(5):
        pool.handle(device=1)
    stats = pool.stats(1)
    assert (stats.created, stats.held, stats.peak_in_use, stats.hits, stats.misses) == (1, 1, 1, 4, 1)
    assert pool.stats(0).created == 0
    assert pool.stats() == stats
    assert repr(stats).startswith("HandleStats(created=1, destroyed=0,")


def test_warm_and_trim():
    gpupool.simulated.trim(1)
    assert [gpupool.simulated.warm(count, device=1) for count in (0, 3, 3)] == [0, 3, 0]
    assert gpupool.simulated.trim(1) == 3


def test_warm_in_the_background():
    threads = queue.Queue()

    def create():
        threads.put(threading.get_ident())
        return 0x10 + threads.qsize()

    pool = gpupool.HandlePool("background", create, lambda handle: None)
    assert pool.warm(2, background=True) == 0
    creators = {threads.get(timeout=60), threads.get(timeout=60)}
    assert len(creators) == 1
    assert threading.get_ident() not in creators


def test_creation_keeps_no_other_thread_waiting():
    creating, go_on = threading.Event(), threading.Event()
    ran = []

    def create():
        creating.set()
        wait_for(go_on, "the creation may go on")
        return 0x1234

    pool = gpupool.HandlePool("slow", create, lambda handle: None)
    thread = threading.Thread(target=pool.handle)
    thread.start()
    wait_for(creating, "a handle is being created")
    # The creation holds neither the GIL nor a lock of the pool.
    ran.append(pool.stats().held)
    go_on.set()
    thread.join()
    assert ran == [0]
    pool.close()
