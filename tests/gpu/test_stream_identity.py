"""A stream is taken for no other: real kernels write words and check them.

Streams beyond a range's 64th, two threads' default streams with one address, and a new stream at a destroyed one's.
"""

from concurrent.futures import ThreadPoolExecutor

import gpupool
import numpy as np
import pytest
from gpu_helpers import cupy, pool_or_skip
from products import Product
from test_stream_addresses import SPIN, array_of, replaced

pytestmark = pytest.mark.device_memory(gib=3)

PAGE = 2 << 20
# Some 50 ms.
CYCLES = 100_000_000
# More than a range knows one by one.
STREAMS = 80


@pytest.fixture
def spin():
    """Return what keeps the current stream busy, compiled and loaded."""
    kernel = cupy.RawKernel(SPIN, "spin")

    def spin(cycles):
        kernel((1,), (1,), (np.int64(cycles),))

    spin(1)
    cupy.zeros(1, np.uint8).fill(1)
    cupy.cuda.runtime.deviceSynchronize()
    return spin


@pytest.fixture
def threads():
    """Yield a function that runs another in one of two threads, which both live on."""
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        yield lambda number, work: (one, two)[number].submit(work).result()


def use_late(ranged, words, page, stream, spin):
    """Commit a page, write to it once the stream has been busy for a while, and decommit it."""
    ranged.commit([page], stream)
    with stream:
        spin(CYCLES)
        words[page].fill(1)
    ranged.decommit([page], stream)


def use(ranged, words, page, stream):
    """Commit a page and return whether it has the words that were written there."""
    ranged.commit([page], stream)
    with stream:
        words[page].fill(2)
    cupy.cuda.runtime.deviceSynchronize()
    is_right = bool((words[page] == 2).all())
    ranged.decommit([page], stream)
    cupy.cuda.runtime.deviceSynchronize()
    return is_right


@pytest.fixture
def ranged():
    """Return a range with memory for one page, and its bytes by pages."""
    pool = gpupool.MemPool(limit=PAGE)
    ranged = pool.reserve_range(STREAMS * PAGE)
    # CuPy asks the driver whose memory it is, which knows only what is committed.
    ranged.commit([0], cupy.cuda.Stream.null)
    words = cupy.asarray(ranged).view(np.uint32).reshape(STREAMS, -1)
    ranged.decommit([0], cupy.cuda.Stream.null)
    cupy.cuda.runtime.deviceSynchronize()
    return ranged, words


def test_of_many_streams_one_gets_no_page_that_anothers_work_uses(ranged, spin):
    ranged, words = ranged
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(STREAMS)]
    for page, stream in enumerate(streams):
        assert use(ranged, words, page, stream)
    for one, other in zip(streams[-12:-6], streams[-6:], strict=True):
        use_late(ranged, words, 0, one, spin)
        assert use(ranged, words, 1, other)


def test_a_thread_gets_no_page_that_anothers_default_stream_uses(ranged, spin, threads):
    ranged, words = ranged
    stream = cupy.cuda.Stream.ptds
    assert threads(1, lambda: use(ranged, words, 1, stream))
    for _ in range(6):
        threads(0, lambda: use_late(ranged, words, 0, stream, spin))
        assert threads(1, lambda: use(ranged, words, 1, stream))


def test_a_stream_at_a_destroyed_ones_address_shares_no_workspace_with_its_work(spin):
    pool = pool_or_skip("cublas")
    before, after = Product(1), Product(2)

    def work(stream):
        before.compute(pool.handle(stream), 1)
        spin(CYCLES)
        before.compute(pool.handle(stream), 200)

    for _ in range(5):
        new = replaced(1, work)
        after.compute(pool.handle(new), 200)
        cupy.cuda.runtime.deviceSynchronize()
        assert [before.is_right(), after.is_right()] == [True, True]


def test_another_threads_default_stream_is_waited_for_by_dlpack(spin, threads):
    stream = cupy.cuda.Stream.ptds

    def write(value):
        buffer = gpupool.empty(8 * PAGE, stream)
        with stream:
            spin(CYCLES)
            array_of(buffer).fill(value)
        return buffer

    def read(buffer):
        with stream:
            values = cupy.from_dlpack(buffer).copy()
        stream.synchronize()
        return set(cupy.unique(values).get().tolist())

    threads(1, lambda: read(threads(0, lambda: write(9))))
    for value in range(1, 6):
        buffer = threads(0, lambda value=value: write(value))
        assert threads(1, lambda buffer=buffer: read(buffer)) == {value}
