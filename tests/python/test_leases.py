"""Leases: handles for a block, limits, and who holds what."""

import ctypes
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import gpupool
import pytest
from waiting import wait_until


def test_a_lease_is_a_handle_for_a_block(make_pool):
    streams = []
    pool = make_pool(set_stream=lambda handle, stream: streams.append(stream))
    first, second = gpupool.Stream(), gpupool.Stream()
    with pool.lease(first) as lease:
        handle = int(lease)
        assert (lease.device, pool.stats().leased) == (0, 1)
    assert (pool.stats().leased, pool.stats().idle) == (0, 1)
    with pytest.raises(gpupool.InvalidValue, match="is over"):
        int(lease)
    lease.release()
    # Without a block it ends with its object.
    lease = pool.lease(second)
    assert (int(lease), pool.stats().leased) == (handle, 1)
    del lease
    assert pool.stats().leased == 0
    with pytest.raises(RuntimeError), pool.lease(first):
        raise RuntimeError
    assert pool.stats().leased == 0
    assert streams == [first.ptr, second.ptr, first.ptr]


def test_a_lease_may_be_used_and_ended_in_another_thread(make_pool):
    pool = make_pool()
    lease = pool.lease()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(int, lease).result() == int(lease)
        other.submit(lease.release).result()
    assert pool.stats().leased == 0


def test_an_exhausted_pool_is_a_timeout_that_says_who_holds_what(make_pool):
    pool = make_pool()
    pool.limit = 1
    with pool.lease(), pytest.raises(TimeoutError, match="all 1 that the limit allows") as raised:
        pool.lease(timeout=0.001)
    error = raised.value
    assert isinstance(error, gpupool.PoolExhausted)
    assert (error.library, error.device, error.limit) == ("test", 0, 1)
    assert "a lease of thread" in error.holders[0]
    assert pool.stats().waits == 1


def test_a_thread_s_name_is_told_on_one_line(make_pool):
    pool = make_pool()
    pool.limit = 1
    with pytest.raises(gpupool.PoolExhausted, match=r"\(a\\n\\u\{1b\}\[31m\)"):
        run_in_thread_named(b"a\n\x1b[31m", pool)


def run_in_thread_named(name, pool):
    """Hold a handle in a thread with this name in the operating system, and ask for another."""
    held, over = threading.Event(), threading.Event()

    def hold():
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
        with pool.lease():
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        pool.lease(timeout=0.001)
    finally:
        over.set()
        thread.join()


def test_a_limit_can_be_read_and_removed(make_pool):
    pool = make_pool()
    assert pool.limit is None
    pool.limit = 2
    assert (pool.limit, pool.warm(5)) == (2, 2)
    pool.limit = None
    assert (pool.limit, pool.warm(5)) == (None, 3)


def test_all_pools_are_one_table():
    with gpupool.simulated.lease():
        stats = gpupool.handle_stats()
    assert stats["simulated"].leased == 1
    assert gpupool.handle_stats(0).keys() == stats.keys()


def while_waiting(pool, act):
    """Return a thread that acts once a request waits for a handle of the pool."""

    def wait_and_act():
        wait_until(lambda: pool.stats().waits == 1, "a request waits for a handle")
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    return thread


@pytest.mark.parametrize("ask", ["handle", "lease"])
def test_ctrl_c_ends_a_wait_at_once_and_leaves_no_trace_of_it(make_pool, ask):
    pool = make_pool()
    pool.limit = 1
    # No test waits as long as these do: 30 seconds, and for ever.
    request = {"handle": pool.handle, "lease": lambda: pool.lease(timeout=1e9)}[ask]
    lease = pool.lease()
    other = while_waiting(pool, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        request()
    other.join()
    stats = pool.stats()
    assert (stats.leased, stats.held, stats.idle, stats.waits, stats.failures) == (1, 0, 0, 1, 0)
    lease.release()
    # What comes back goes to none that waits no more.
    assert pool.stats().idle == 1
    assert int(pool.lease(timeout=0)) != 0


def test_a_signal_whose_handler_returns_ends_no_wait(make_pool):
    pool = make_pool()
    pool.limit = 1
    lease = pool.lease()
    handle = int(lease)
    former = signal.signal(signal.SIGUSR1, lambda *_: lease.release())
    try:
        other = while_waiting(pool, lambda: signal.raise_signal(signal.SIGUSR1))
        with pool.lease() as served:
            assert int(served) == handle
        other.join()
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_a_lease_is_passed_to_c_as_it_is(make_pool):
    bindings = pytest.importorskip("cuda.bindings.driver")
    large = 0x7F00_1234_5678
    echo = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda handle: handle)
    # What dlsym gives: it takes what it is given, and truncates an int.
    undeclared = ctypes.CDLL(None).labs
    undeclared.restype = ctypes.c_long
    lease = make_pool(create=lambda: large).lease()
    assert echo(lease) == large
    assert undeclared(lease) == large
    assert int(bindings.CUstream(lease)) == large
    lease.release()
    with pytest.raises(gpupool.InvalidValue, match="is over"):
        _ = lease._as_parameter_
