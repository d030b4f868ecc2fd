"""Memory ranges from Python: how pages are named, views of the whole, pins, callbacks, and what errors say."""

import array
import gc
import pickle
import sys
import threading
import weakref

import gpupool
import numpy as np
import pytest
from running import run_program
from waiting import LONG, wait_for, wait_for_end

PAGE = 2 << 20


@pytest.fixture
def pool():
    return gpupool.MemPool()


@pytest.fixture
def stream():
    return gpupool.Stream()


@pytest.fixture
def ranged(pool):
    return pool.reserve_range(64 * PAGE)


def committed(ranged):
    """Return the numbers of the committed pages."""
    pages = range(ranged.nbytes // ranged.page_bytes)
    bits = np.unpackbits(np.frombuffer(ranged.pin(pages), np.uint8), count=len(pages), bitorder="little")
    there = np.flatnonzero(bits).tolist()
    ranged.unpin(there)
    return there


def test_bytes_and_pages_are_committed_and_decommitted(pool, ranged, stream):
    assert (ranged.nbytes, ranged.page_bytes, ranged.committed_bytes) == (64 * PAGE, PAGE, 0)
    assert (ranged.device, ranged.pool_id) == (0, pool.id)
    ranged.commit(2 * PAGE, 3 * PAGE, stream)
    ranged.commit([9, 7, 9], stream)
    ranged.commit([11], stream=stream)
    assert committed(ranged) == [2, 3, 4, 7, 9, 11]
    assert pool.stats().live_bytes == ranged.committed_bytes == 6 * PAGE
    ranged.decommit(3 * PAGE, 2 * PAGE)
    ranged.decommit((7, 8), stream)
    assert committed(ranged) == [2, 9, 11]


@pytest.mark.parametrize(
    "pages",
    [
        [1, 4, 6],
        (1, 4, 6),
        iter([1, 4, 6]),
        {1, 4, 6},
        bytes([1, 4, 6]),
        array.array("H", [1, 4, 6]),
        memoryview(array.array("q", [1, 4, 6])),
        *(np.array([1, 4, 6], kind) for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")),
        np.array([6, 0, 4, 0, 1])[::-2],
        np.array([[1, 0], [4, 0], [6, 0]])[:, 0],
        np.array([1, 4, 6], ">i4"),
        [np.int64(1), np.uint8(4), np.int32(6)],
    ],
    ids=lambda pages: type(pages).__name__,
)
def test_page_numbers_are_any_sequence_or_array_of_integers(ranged, pages):
    ranged.commit(pages)
    assert committed(ranged) == [1, 4, 6]


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda r: r.commit(1), TypeError, "needs nbytes"),
        (lambda r: r.commit([1], 2, 3), TypeError, "take no nbytes"),
        (lambda r: r.commit("12"), TypeError, "a page is '1'"),
        (lambda r: r.commit(memoryview(b"12").cast("c")), TypeError, "a page is b'1'"),
        (lambda r: r.commit([1.5]), TypeError, "a page is 1.5"),
        (lambda r: r.commit(np.array([1.5])), TypeError, "a page is"),
        (lambda r: r.commit(object()), TypeError, "sequence"),
        (lambda r: r.commit([True]), gpupool.InvalidValue, "a page is True"),
        (lambda r: r.commit([-1]), gpupool.InvalidValue, "a page is -1"),
        (lambda r: r.commit(np.array([-1])), gpupool.InvalidValue, "page -1"),
        (lambda r: r.commit(np.array([2, 0, 1 << 40, -5, 1])[::2]), gpupool.InvalidValue, "page 1099511627776"),
        (lambda r: r.pin(np.array([2, 99, 65, 0])), gpupool.InvalidValue, "64 pages and no page 99"),
        (lambda r: r.commit(1, PAGE), gpupool.InvalidValue, "1 to 2097153"),
        (lambda r: r.commit(True, PAGE), gpupool.InvalidValue, "start is True"),
        (lambda r: r.commit([0], fill=256), gpupool.InvalidValue, "fill is 256"),
        (lambda r: r.unpin([0]), gpupool.InvalidValue, "page 0 of the range is not pinned"),
        (lambda r: r.on_discard(3), gpupool.InvalidValue, "callable"),
        (lambda r: pickle.dumps(r), TypeError, "pickle"),
    ],
)
def test_what_cannot_be_is_refused_with_the_values(ranged, call, error, said):
    with pytest.raises(error, match=said):
        call(ranged)
    assert ranged.committed_bytes == 0


@pytest.mark.parametrize(("sizes", "said"), [((PAGE + 1,), "2097153"), ((0,), "0 bytes"), ((PAGE, 3 << 20), "3145728")])
def test_sizes_that_are_no_whole_pages_are_refused(pool, sizes, said):
    with pytest.raises(gpupool.InvalidValue, match=said):
        pool.reserve_range(*sizes)


def test_an_array_is_of_all_bytes_and_keeps_the_range(pool, stream):
    ranged = pool.reserve_range(8 * PAGE)
    ranged.commit([1], stream, fill=7)
    stream.synchronize()
    view = np.from_dlpack(ranged)
    assert (view.nbytes, view.ctypes.data) == (ranged.nbytes, ranged.ptr)
    assert (view[PAGE : 2 * PAGE] == 7).all()
    with pytest.raises(gpupool.InvalidValue, match="DLPack"):
        ranged.free()
    with pytest.raises(BufferError):
        ranged.__dlpack__(copy=True)
    with pytest.raises(AttributeError, match="simulated"):
        _ = ranged.__cuda_array_interface__
    seen = weakref.ref(ranged)
    del ranged
    gc.collect()
    assert view[PAGE] == 7
    assert pool.stats().live_bytes == PAGE
    del view
    gc.collect()
    assert seen() is None
    pool.trim()
    assert pool.stats().reserved_bytes == 0


def test_a_with_block_frees_it_and_a_second_free_does_nothing(pool, stream):
    with pool.reserve_range(8 * PAGE) as ranged:
        ranged.commit([0], stream)
    assert repr(ranged) == "gpupool.MemoryRange(freed)"
    ranged.free()
    for call in (lambda: ranged.commit([0]), lambda: ranged.committed_bytes, lambda: np.from_dlpack(ranged)):
        with pytest.raises(gpupool.InvalidValue, match="freed"):
            call()


def test_a_range_that_is_just_freed_lends_no_array(stream):
    ranged = gpupool.MemPool(limit=2 * PAGE).reserve_range(4 * PAGE)
    commits, may_end, frees = threading.Event(), threading.Event(), threading.Event()
    refused = []

    def without_memory(_device, _nbytes):
        commits.set()
        wait_for(may_end, "the range was asked for an array")
        return False

    def commit():
        with pytest.raises(gpupool.OutOfMemory):
            ranged.commit(range(3), stream)

    def free():
        frees.set()
        # It waits for the commit.
        try:
            ranged.free()
        except gpupool.InvalidValue as error:
            refused.append(error)

    interval = sys.getswitchinterval()
    with gpupool.on_oom(without_memory):
        threads = [threading.Thread(target=commit), threading.Thread(target=free)]
        threads[0].start()
        wait_for(commits, "a commit has found no memory")
        try:
            # The thread runs on until it waits.
            sys.setswitchinterval(LONG)
            threads[1].start()
            wait_for(frees, "another thread frees the range")
        finally:
            sys.setswitchinterval(interval)
        try:
            view = np.from_dlpack(ranged)
        except gpupool.InvalidValue:
            view = None
        may_end.set()
        wait_for_end(*threads)
    # Not shown, as that would read the memory.
    is_lent = view is not None
    assert is_lent == bool(refused), "an array is of a range that was freed"


def test_pin_tells_of_each_page_in_the_order_given_and_a_refused_unpin_changes_nothing(ranged, stream):
    there = [1, 4, 6, 7, 9, 17, 63]
    ranged.commit(there, stream)
    for asked in (np.arange(64), np.arange(63, -1, -1), np.array([4, 9, 4, 0, 1, 1, 2, 3, 17, 5, 63])):
        bits = np.unpackbits(np.frombuffer(ranged.pin(asked, stream), np.uint8), bitorder="little")
        assert bits[: len(asked)].tolist() == [page in there for page in asked]
        assert not bits[len(asked) :].any()
        pinned = asked[bits[: len(asked)] == 1]
        with pytest.raises(gpupool.InvalidValue, match="page 5 of the range is not pinned"):
            ranged.unpin([*pinned, 5, *pinned])
        ranged.unpin(pinned)
        with pytest.raises(gpupool.InvalidValue, match=f"page {pinned[0]} of the range is not pinned"):
            ranged.unpin(pinned[:1])
    ranged.decommit(there)


def test_what_is_taken_is_told_and_what_is_pinned_stays(stream):
    pool, other = gpupool.MemPool(limit=8 * PAGE), gpupool.Stream()
    ranged = pool.reserve_range(16 * PAGE)
    taken = []
    with ranged.on_discard(taken.extend) as callback:
        assert "extend" in repr(callback)
        ranged.commit(range(4), stream, priority=3)
        ranged.commit(range(4, 8), stream, priority=-3)
        assert ranged.pin([4], other) == b"\x01"
        assert ranged.discardable_bytes == 7 * PAGE
        block = pool.empty(2 * PAGE, stream)
        assert taken == [5, 6]
        ranged.commit([9, 10], stream)
        assert taken == [5, 6, 7, 0]
    ranged.commit([11], stream)
    assert taken == [5, 6, 7, 0]
    assert committed(ranged) == [2, 3, 4, 9, 10, 11]
    del block


def test_summaries_tell_ranges_from_streams(pool, ranged, stream):
    ranged.commit([0, 1, 5], stream)
    assert [len(segment["blocks"]) for segment in pool.snapshot()] == [2, 1]
    (summary,) = (one for one in gpupool.memory_summary().devices[0].pools if one.id == pool.id)
    assert [(one.is_ranges, one.live_bytes) for one in summary.streams] == [(True, 3 * PAGE)]
    assert "memory ranges" in str(gpupool.memory_summary())


def test_a_pin_that_waits_for_a_commit_leaves_the_interpreter_to_its_callback():
    run_program("memory/pin_beside_commit.py", GPUPOOL_HOST_MEMORY=str(32 * PAGE))
