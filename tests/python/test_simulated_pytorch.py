"""PyTorch's own allocator, simulated: against PyTorch's peaks on an H200, and rule by rule."""

import itertools
import random
from pathlib import Path

import pytest
from gpupool._traces import pytorch as _pytorch
from gpupool._traces import trace as _trace
from gpupool._traces.event import Event, Stacks

DATA = Path(__file__).parents[1] / "data"
KIB, MIB = 1 << 10, 1 << 20


def trace_of(*events):
    """Return a trace: (name, bytes) allocates on stream 0, (name, bytes, stream) there, (name,) frees."""
    found = []
    for number, (name, *rest) in enumerate(events):
        size, stream = [*rest, 0, 0][:2] if rest else (0, 0)
        found.append(Event(bool(rest), name, size, stream, number))
    return _trace._pack("a test", 1 << 30, found, "{}", Stacks())


def reserved(*events, **options):
    """Return what is reserved after each event that changes it."""
    return [nbytes for _, nbytes in _pytorch.simulate(trace_of(*events), **options).changes]


# What PyTorch 2.11 measured where the traces in tests/data were recorded, by default and with expandable segments.
@pytest.mark.parametrize(
    ("name", "plain", "expandable"),
    [
        ("gnn_sampled-1", (85383446528, 46), (23838326784, 32)),
        ("two_streams-1", (18113101824, 410), (5135925248, 186)),
    ],
)
def test_it_has_the_peaks_that_pytorch_had(name, plain, expandable):
    trace = _trace.read(str(DATA / f"{name}.csv.gz"))
    for choice, truth in ((False, plain), (True, expandable)):
        found = _pytorch.simulate(trace, expandable=choice)
        assert (found.peak_reserved, found.growths) == truth
        assert (found.retries, found.fails_at) == (0, None)


@pytest.mark.parametrize(
    ("nbytes", "segment", "expanded"),
    [
        (1, 2, 2),
        (MIB, 2, 2),
        (MIB + 1, 20, 20),
        (10 * MIB - 512, 20, 20),
        (10 * MIB, 10, 20),
        (10 * MIB + 1, 12, 20),
        (20 * MIB + 1, 22, 40),
    ],
)
def test_segments_are_as_large_as_requests_say(nbytes, segment, expanded):
    assert reserved(("a", nbytes)) == [segment * MIB]
    assert reserved(("a", nbytes), expandable=True) == [expanded * MIB]


def test_small_blocks_share_a_segment_to_its_last_512_bytes():
    blocks = [(number, 1) for number in range(4096)]
    for choice in (False, True):
        assert reserved(*blocks, expandable=choice) == [2 * MIB]
        assert reserved(*blocks, ("one more", 1), expandable=choice) == [2 * MIB, 4 * MIB]


def test_a_large_block_keeps_what_is_left_of_up_to_a_mib():
    # In 32 MiB 31 leave a MiB, which stays with the block, and a little less leaves more, which is cut off.
    held = [("a", 32 * MIB), ("a",)]
    pieces = [(number, 4 * MIB) for number in range(4)]
    assert reserved(*held, ("b", 31 * MIB), ("b",), ("c", 31 * MIB), ("d", MIB + 1)) == [32 * MIB, 52 * MIB]
    assert reserved(*pieces, ("b", 2 * MIB), ("c", 2 * MIB - 512), ("d", MIB + 512)) == [20 * MIB, 40 * MIB]
    assert reserved(*pieces, ("b", 2 * MIB - 512), ("c", 2 * MIB - 512)) == [20 * MIB]
    # With expandable segments nothing stays with it.
    assert reserved(*held, ("b", 39 * MIB), ("c", 1 * MIB + 512), expandable=True) == [40 * MIB, 60 * MIB]
    assert reserved(*held, ("b", 38 * MIB), ("c", 1 * MIB + 512), expandable=True) == [40 * MIB]


def test_the_best_fit_is_taken_and_neighbours_are_joined():
    held = [("a", 12 * MIB), ("b", 30 * MIB), ("a",), ("b",)]
    # The smaller one is enough for the first, and the larger one is whole for the second.
    assert reserved(*held, ("c", 11 * MIB), ("d", 30 * MIB)) == [12 * MIB, 42 * MIB]
    pieces = [("a", 5 * MIB), ("b", 5 * MIB), ("c", 5 * MIB), ("a",), ("c",), ("b",)]
    assert reserved(*pieces, ("d", 20 * MIB)) == [20 * MIB]


def test_streams_do_not_share():
    used = [("a", 5 * MIB, 0), ("a",), ("b", 5 * MIB, 7)]
    for choice in (False, True):
        assert reserved(*used, expandable=choice) == [20 * MIB, 40 * MIB]


def test_pools_do_not_share():
    first = Event(True, "a", 5 * MIB, 0, 0, pool=(0, 1))
    second = Event(True, "b", 5 * MIB, 0, 2, pool=(0, 0))
    trace = _trace._pack("a test", 1 << 30, [first, first._replace(allocates=False), second], "{}", Stacks())
    assert _pytorch.simulate(trace).peak_reserved == 40 * MIB


def test_expandable_segments_grow_by_what_lacks():
    events = [("a", 30 * MIB), ("b", 30 * MIB), ("a",), ("b",), ("c", 70 * MIB)]
    assert reserved(*events) == [30 * MIB, 60 * MIB, 130 * MIB]
    assert reserved(*events, expandable=True) == [40 * MIB, 60 * MIB, 80 * MIB]


def test_what_is_free_is_given_back_before_memory_runs_out():
    events = [("a", 30 * MIB), ("b", 30 * MIB), ("a",), ("b",), ("c", 70 * MIB)]
    found = _pytorch.simulate(trace_of(*events), capacity=100 * MIB)
    assert [nbytes for _, nbytes in found.changes] == [30 * MIB, 60 * MIB, 70 * MIB]
    assert (found.retries, found.fails_at) == (1, None)
    # A live block keeps its segment; the request fails, and so the program would have.
    held = [("a", 30 * MIB), ("b", 30 * MIB), ("b",), ("c", 71 * MIB), ("d", 1)]
    found = _pytorch.simulate(trace_of(*held), capacity=100 * MIB)
    assert (found.retries, found.fails_at, found.peak_reserved) == (1, 3, 60 * MIB)


def test_of_expandable_segments_whole_chunks_are_given_back():
    # b holds the second chunk alone, so the chunks before and after it go, and serve another stream.
    events = [("a", 20 * MIB), ("b", 20 * MIB), ("c", 40 * MIB), ("a",), ("c",), ("d", 60 * MIB, 5)]
    found = _pytorch.simulate(trace_of(*events), expandable=True, capacity=80 * MIB)
    assert (found.retries, found.fails_at, found.peak_reserved) == (1, None, 80 * MIB)
    # What was unmapped before b is mapped again first.
    back = [*events, ("d",), ("e", 20 * MIB)]
    found = _pytorch.simulate(trace_of(*back), expandable=True, capacity=80 * MIB)
    assert (found.retries, found.fails_at, found.changes[-1]) == (2, None, (7, 40 * MIB))


@pytest.mark.parametrize("expandable", [False, True])
def test_books_are_kept_whatever_happens(expandable):
    """Live blocks do not overlap, and what is reserved is what they and the free ones have."""
    chosen = random.Random(7)
    allocator = _pytorch._Allocator(expandable, 400 * MIB)
    live = []
    for _ in range(4000):
        if live and chosen.random() < 0.5:
            allocator.free(live.pop(chosen.randrange(len(live))))
        else:
            try:
                live.append(allocator.allocate(int(2 ** chosen.uniform(5, 26)), chosen.randrange(3), 0))
            except _pytorch._OutOfMemory:
                allocator.free(live.pop())
        places = sorted((block.start, block.start + block.size) for block in live)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
        free = 0
        for arena in allocator._arenas.values():
            assert arena.free == sorted(arena.free)
            assert arena.unmapped == sorted(start for start, block in arena.blocks.items() if not block.is_mapped)
            assert {start for _, start in arena.free} | set(arena.unmapped) == set(arena.blocks)
            free += sum(size for size, _ in arena.free)
        assert allocator.reserved == free + sum(block.size for block in live) <= 400 * MIB
    assert allocator.retries > 0
    while live:
        allocator.free(live.pop())
    allocator._give_back()
    assert allocator.reserved == 0


def test_it_tells_how_far_it_is():
    parts = []
    _pytorch.simulate(trace_of(*[(number, 1) for number in range(1 << 15)]), watch=parts.append)
    assert parts == [0.0, 0.5]
