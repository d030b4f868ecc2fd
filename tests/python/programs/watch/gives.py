"""Before a call of other code finds no memory, gpupool gives back what it has free. Each device has 1024 MiB."""

import ctypes
import os

import gpupool
from double import MIB, calls, driver, error_of, fail, is_capturing, set_capture
from other import OUT_OF_MEMORY, cache, capture_mode, current_context, reserved_mib, take, take_pages, use_device
from waiting import in_thread

RELAXED = 2


def what_is_free_is_given_back_as_much_as_is_missing():
    use_device(0)
    cache(800)
    assert reserved_mib() == 800
    assert take(500) == 0, "the call failed though gpupool has memory free"
    # 224 MiB were free, so 276 were missing. Without virtual memory all goes that a stream has, or nothing.
    least = 800 - 276 - 32 - 20 if os.environ["FAKE_VMM"] == "1" else 0
    assert least <= reserved_mib() <= 800 - 276, f"{reserved_mib()} MiB are left"
    assert driver.double_used(0) == (500 + reserved_mib()) * MIB


def what_is_live_is_not_touched():
    use_device(0)
    buffer, cached = gpupool.empty(600 * MIB), gpupool.empty(200 * MIB)
    ctypes.memset(buffer.ptr, 7, buffer.nbytes)
    cached.free()
    assert take(300) == 0, "the call failed though gpupool has memory free"
    assert take(300) == OUT_OF_MEMORY, "there was no memory"
    assert reserved_mib() >= 600
    assert ctypes.string_at(buffer.ptr, buffer.nbytes) == b"\7" * buffer.nbytes, "a live buffer has lost its content"
    assert calls("cuMemAlloc_v2") <= 20, "the driver is asked again and again"


def a_private_pool_keeps_its_own():
    use_device(0)
    pool = gpupool.MemPool()
    cache(600, pool)
    assert (take(600), reserved_mib()) == (OUT_OF_MEMORY, 600)
    # Unless it lends what it has free.
    lender = gpupool.MemPool(use_on_oom=True)
    cache(300, lender)
    assert take(300) == 0, "a pool that lends its memory keeps it"
    assert pool.stats().reserved_bytes == 600 * MIB


def segments_of_their_own_are_kept():
    use_device(0)
    pool = gpupool.MemPool(no_split=True)
    cache(600, pool, 200)
    assert (take(600), reserved_mib()) == (OUT_OF_MEMORY, 600)


def more_than_the_device_has_takes_nothing():
    use_device(0)
    cache(800)
    assert (take(1025), reserved_mib()) == (OUT_OF_MEMORY, 800)
    assert (take_pages(1026, 0), reserved_mib()) == (OUT_OF_MEMORY, 800)


def a_failure_of_another_kind_takes_nothing():
    use_device(0)
    cache(800)
    fail("cuMemAlloc_v2=700")
    assert (take(500), reserved_mib()) == (700, 800)


def of_another_device_nothing_is_taken():
    with gpupool.stream(gpupool.Stream(0)):
        cache(800)
    use_device(1)
    with gpupool.stream(gpupool.Stream(1)):
        cache(800)
    assert (reserved_mib(0), reserved_mib(1)) == (800, 800)
    assert take(500) == 0
    assert reserved_mib(0) == 800, "memory of another device was given back"
    assert reserved_mib(1) < 800


def pages_of_a_device_that_is_not_the_threads():
    context = use_device(0)
    with gpupool.stream(gpupool.Stream(1)):
        cache(800)
    assert take_pages(500, 1) == 0, "pages of another device than the thread's"
    assert current_context() == context, "another context is current"


def the_context_and_the_mode_of_captures_stay():
    for device in (0, 1):
        context = use_device(device)
        with gpupool.stream(gpupool.Stream(device)):
            cache(800)
        before = capture_mode(RELAXED)
        assert take(500) == 0
        assert (current_context(), capture_mode(before)) == (context, RELAXED)
    driver.cuCtxSetCurrent(None)
    assert take(500) != 0, "without a context"
    assert current_context() is None


def a_capture_goes_on():
    use_device(0)
    cache(800)
    stream = gpupool.Stream(0)
    set_capture(stream.ptr, 1)
    # As who allocates during a capture does.
    before = capture_mode(RELAXED)
    status = take(500)
    capture_mode(before)
    assert is_capturing(stream.ptr), "the capture was spoilt"
    set_capture(stream.ptr, 0)
    assert status in (0, OUT_OF_MEMORY), status
    assert take(400) in (0, OUT_OF_MEMORY)


def a_thread_that_gpupool_has_not_seen():
    cache(800)

    def takes():
        use_device(0)
        return take(500)

    assert in_thread(takes) == 0


def gpupools_own_requests_are_as_before():
    cache(800)
    buffer = gpupool.empty(900 * MIB)
    assert buffer.nbytes == 900 * MIB
    error = error_of(gpupool.empty, 500 * MIB)
    assert error.startswith("OutOfMemory "), error


def a_child_gets_the_drivers_answer():
    use_device(0)
    cache(800)
    child = os.fork()
    if not child:
        os._exit(0 if take(500) == OUT_OF_MEMORY else 1)
    assert os.waitpid(child, 0)[1] == 0, "the child was given memory of its parent's"
    assert take(500) == 0
