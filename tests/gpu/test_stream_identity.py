"""A stream is taken for no other: real kernels write words and check them.

Streams beyond a range's 64th, two threads' default streams with one address, and a new stream at a destroyed one's.
"""

from concurrent.futures import ThreadPoolExecutor

import gpupool
import numpy as np
import pytest
from gpu_helpers import cupy, pool_or_skip
from long_kernel import spin
from products import Product

pytestmark = pytest.mark.device_memory(gib=3)

PAGE = 2 << 20
# Some 50 ms.
CYCLES = 100_000_000
# More than a range knows one by one.
STREAMS = 80
# So often a stream is destroyed, until one of so many new ones has its address.
TRIES, NEW = 32, 8


@pytest.fixture(autouse=True)
def loaded():
    """Compile and load the kernels."""
    spin(1)
    cupy.zeros(1, np.uint8).fill(1)
    cupy.cuda.runtime.deviceSynchronize()


@pytest.fixture
def threads():
    """Yield a function that runs another in one of two threads, which both live on."""
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        yield lambda number, work: (one, two)[number].submit(work).result()


def array_of(buffer):
    """The buffer's bytes as an array."""
    memory = cupy.cuda.UnownedMemory(buffer.ptr, buffer.nbytes, buffer)
    return cupy.ndarray(buffer.nbytes, dtype=np.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))


def replaced(flags, work):
    """A stream at the address of one that was destroyed while it did this work."""
    create = cupy.cuda.runtime.streamCreateWithFlags
    for _ in range(TRIES):
        address = create(flags)
        with cupy.cuda.ExternalStream(address) as former:
            work(former)
        cupy.cuda.runtime.streamDestroy(address)
        if address in [create(flags) for _ in range(NEW)]:
            return cupy.cuda.ExternalStream(address)
    pytest.skip("no new stream has the address of a destroyed one")


def use_late(ranged, words, page, stream):
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


def test_of_many_streams_one_gets_no_page_that_anothers_work_uses(ranged):
    ranged, words = ranged
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(STREAMS)]
    for page, stream in enumerate(streams):
        assert use(ranged, words, page, stream)
    for one, other in zip(streams[-12:-6], streams[-6:], strict=True):
        use_late(ranged, words, 0, one)
        assert use(ranged, words, 1, other)


def test_a_thread_gets_no_page_that_anothers_default_stream_uses(ranged, threads):
    ranged, words = ranged
    stream = cupy.cuda.Stream.ptds
    assert threads(1, lambda: use(ranged, words, 1, stream))
    for _ in range(6):
        threads(0, lambda: use_late(ranged, words, 0, stream))
        assert threads(1, lambda: use(ranged, words, 1, stream))


def test_a_stream_at_a_destroyed_ones_address_shares_no_workspace_with_its_work():
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


@pytest.mark.parametrize("flags", [0, 1], ids=["blocking", "non_blocking"])
@pytest.mark.parametrize("nbytes", [512, 8 << 20])
def test_a_stream_at_a_destroyed_ones_address_gets_none_of_the_memory_that_its_work_uses(flags, nbytes):
    def keep_busy(stream):
        buffer = gpupool.empty(nbytes, stream)
        spin(2 * CYCLES)
        array_of(buffer).fill(1)

    new = replaced(flags, keep_busy)
    again = gpupool.empty(nbytes, new)
    with new:
        array = array_of(again)
        array.fill(2)
    cupy.cuda.Device().synchronize()
    assert bool((array == 2).all())


def test_another_threads_default_stream_is_waited_for_by_dlpack(threads):
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
