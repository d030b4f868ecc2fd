"""A simulation of PyTorch's own caching allocator: the bytes that it would have reserved for a trace.

It follows the rules that PyTorch has published, in its notes on memory management and in CUDACachingAllocator.cpp: how
sizes are rounded, which free block is taken and when it is split, how large segments are, what grows where
segments are expandable, and what is given back before memory runs out. Nothing of PyTorch is run, and no GPU is needed.

https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
"""

from array import array
from bisect import bisect_left, insort
from dataclasses import dataclass, field

from gpupool._traces.event import Watch
from gpupool._traces.trace import FREE, Trace

_MIB = 1 << 20
# Sizes are rounded up to these; up to the second, requests are served from segments of the third.
_ROUNDING, _SMALL, _SMALL_SEGMENT = 512, _MIB, 2 * _MIB
# Requests below the first are served from segments of the second; others have one of their own, rounded up to these.
_OWN_SEGMENT, _LARGE_SEGMENT, _OWN_ROUNDING = 10 * _MIB, 20 * _MIB, 2 * _MIB
# The addresses of a segment that grows: more than any device has, and whole chunks.
_ADDRESSES = _LARGE_SEGMENT << 23
# The events between two calls of the watcher.
_STEP = 1 << 14


@dataclass(frozen=True)
class Shortage:
    """What PyTorch's allocator would have had as memory ran out, when all that it could give back was given back."""

    requested: int
    live: int
    """The bytes of the device that blocks in use have, as they are rounded up."""
    free: int
    """The bytes that are reserved and free."""
    largest: int
    """The largest piece of them."""
    left: int
    """The bytes of the device that are not reserved."""


@dataclass(frozen=True)
class Simulation:
    """The memory that PyTorch's allocator would have taken for a trace."""

    peak_reserved: int
    growths: int
    """How often it would have asked the driver for memory."""
    retries: int
    """How often it would have given back all that it had free, since the device had no more."""
    fails_at: int | None
    """The number of the event at which memory would have run out for good, where the simulation ends."""
    shortage: Shortage | None
    """What there was then."""
    changes: list[tuple[int, int]] = field(repr=False)
    """The bytes reserved after each event that changed them, as (event, bytes)."""


class _OutOfMemory(Exception):
    """The device has no more."""


class _Block:
    """A piece of a segment, between the pieces before and after it."""

    __slots__ = ("after", "arena", "before", "is_free", "is_mapped", "size", "start")

    def __init__(self, arena: "_Arena", start: int, size: int, is_mapped: bool = True) -> None:
        self.arena = arena
        self.start = start
        self.size = size
        self.is_free = True
        self.is_mapped = is_mapped
        self.before: _Block | None = None
        self.after: _Block | None = None


class _Arena:
    """What one pool has for small requests, or for large ones, on one stream."""

    __slots__ = ("blocks", "free", "is_small", "unmapped")

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        # The free blocks as (size, start), in order, and those and the unmapped ones by their start. Of one size the
        # oldest segment's come first, as in PyTorch 2.15: new segments have higher addresses.
        self.free: list[tuple[int, int]] = []
        self.blocks: dict[int, _Block] = {}
        # The starts of addresses without memory, in order; only expandable segments have any.
        self.unmapped: list[int] = []

    def put(self, block: _Block) -> None:
        """Add a free block."""
        self.blocks[block.start] = block
        insort(self.free, (block.size, block.start))

    def take(self, block: _Block) -> None:
        """Remove a free block."""
        del self.free[bisect_left(self.free, (block.size, block.start))]
        del self.blocks[block.start]


class _Allocator:
    """PyTorch's allocator of one device."""

    def __init__(self, is_expandable: bool, capacity: int | None) -> None:
        self.is_expandable = is_expandable
        self.capacity = capacity
        self.reserved = self.growths = self.retries = 0
        self._arenas: dict[tuple[int, bool, int], _Arena] = {}
        # Where the next segment begins.
        self._next = _ADDRESSES

    def allocate(self, nbytes: int, stream: int, pool: int) -> _Block:
        """Return a block for a request."""
        size = max(_ROUNDING, -(-nbytes // _ROUNDING) * _ROUNDING)
        is_small = size <= _SMALL
        key = pool, is_small, stream
        arena = self._arenas.get(key)
        if arena is None:
            arena = self._arenas[key] = _Arena(is_small)
        block = self._fitting(arena, size) or self._grown(arena, size)
        rest = block.size - size
        if rest > _SMALL or (rest >= _ROUNDING and (is_small or self.is_expandable)):
            self._cut(block, size)
            assert block.after is not None
            arena.put(block.after)
        block.is_free = False
        return block

    def free(self, block: _Block) -> None:
        """Take a block back, and join it with free neighbours."""
        block.is_free = True
        block.arena.put(self._joined(block))

    def shortage(self, requested: int) -> Shortage:
        """Return what there is as a request fails."""
        pieces = [size for arena in self._arenas.values() for size, _ in arena.free]
        free = sum(pieces)
        left = (self.capacity or 0) - self.reserved
        return Shortage(requested, self.reserved - free, free, max(pieces, default=0), left)

    def _fitting(self, arena: _Arena, size: int) -> _Block | None:
        """Return the smallest free block that is large enough, if there is one."""
        free = arena.free
        index = bisect_left(free, (size, 0))
        if index == len(free):
            return None
        block = arena.blocks[free[index][1]]
        if self.is_expandable:
            # A block that can grow counts with all that it can grow to.
            room = _room(block)
            while index + 1 < len(free) and _room(following := arena.blocks[free[index + 1][1]]) < room:
                index, block, room = index + 1, following, _room(following)
        del free[index]
        del arena.blocks[block.start]
        return block

    def _grown(self, arena: _Arena, size: int) -> _Block:
        """Return a block of new memory; if the device has no more, after giving back all that is free."""
        grow = self._expanded if self.is_expandable else self._segment
        try:
            return grow(arena, size)
        except _OutOfMemory:
            self._give_back()
            self.retries += 1
            return grow(arena, size)

    def _reserve(self, nbytes: int) -> None:
        if self.capacity is not None and self.reserved + nbytes > self.capacity:
            raise _OutOfMemory
        self.reserved += nbytes
        self.growths += 1

    def _segment(self, arena: _Arena, size: int) -> _Block:
        """Return a segment, which has the size of one block."""
        if arena.is_small:
            nbytes = _SMALL_SEGMENT
        elif size < _OWN_SEGMENT:
            nbytes = _LARGE_SEGMENT
        else:
            nbytes = -(-size // _OWN_ROUNDING) * _OWN_ROUNDING
        self._reserve(nbytes)
        block = _Block(arena, self._next, nbytes)
        self._next += nbytes
        return block

    def _expanded(self, arena: _Arena, size: int) -> _Block:
        """Return a free block of the arena's expandable segment, which has grown to this size."""
        block = self._growing(arena, size)
        if block.is_mapped:
            arena.take(block)
        else:
            block = self._map(block, min(size, block.size))
        while block.size < size:
            assert block.after is not None
            wanted = min(size - block.size, block.after.size)
            try:
                block = self._map(block.after, wanted)
            except _OutOfMemory:
                arena.put(block)
                raise
        return block

    def _growing(self, arena: _Arena, size: int) -> _Block:
        """Return the first block from which free and unmapped ones have room for a request."""
        for start in arena.unmapped:
            block = arena.blocks[start]
            if block.before is not None and block.before.is_free:
                block = block.before
            room, at = 0, block
            while room < size:
                room += at.size
                if at.after is None or not at.after.is_free:
                    break
                at = at.after
            if room >= size:
                return block
        block = _Block(arena, self._next, _ADDRESSES, is_mapped=False)
        self._next += _ADDRESSES
        arena.blocks[block.start] = block
        insort(arena.unmapped, block.start)
        return block

    def _map(self, block: _Block, nbytes: int) -> _Block:
        """Put memory behind the first bytes of an unmapped block, and return it joined with a free neighbour."""
        chunk = _SMALL_SEGMENT if block.arena.is_small else _LARGE_SEGMENT
        size = -(-nbytes // chunk) * chunk
        self._reserve(size)
        arena = block.arena
        del arena.blocks[block.start]
        arena.unmapped.remove(block.start)
        if size < block.size:
            self._cut(block, size)
            assert block.after is not None
            self._unmapped(block.after)
        block.is_mapped = True
        return self._joined(block)

    def _unmapped(self, block: _Block) -> None:
        block.is_mapped = False
        block.arena.blocks[block.start] = block
        insort(block.arena.unmapped, block.start)

    def _give_back(self) -> None:
        """Give back what is free: whole segments, and of expandable ones whole chunks."""
        for arena in self._arenas.values():
            chunk = _SMALL_SEGMENT if arena.is_small else _LARGE_SEGMENT
            for _, start in list(arena.free):
                block = arena.blocks[start]
                if self.is_expandable:
                    self._unmap(block, chunk)
                elif block.before is block.after is None:
                    arena.take(block)
                    self.reserved -= block.size

    def _unmap(self, block: _Block, chunk: int) -> None:
        """Give back the whole chunks of a free block."""
        arena = block.arena
        first, end = -(-block.start // chunk) * chunk, (block.start + block.size) // chunk * chunk
        if first >= end:
            return
        arena.take(block)
        if first > block.start:
            self._cut(block, first - block.start)
            arena.put(block)
            assert block.after is not None
            block = block.after
        if end < block.start + block.size:
            self._cut(block, end - block.start)
            assert block.after is not None
            arena.put(block.after)
        self.reserved -= block.size
        before, after = block.before, block.after
        if after is not None and not after.is_mapped:
            del arena.blocks[after.start]
            arena.unmapped.remove(after.start)
            _join(block, after)
        if before is not None and not before.is_mapped:
            _join(before, block)
        else:
            self._unmapped(block)

    def _joined(self, block: _Block) -> _Block:
        """Return a block together with the free neighbours that have memory, which are taken out of the free ones."""
        before, after = block.before, block.after
        if before is not None and before.is_free and before.is_mapped:
            # One that grows for a request was taken out already.
            if before.start in block.arena.blocks:
                block.arena.take(before)
            block = _join(before, block)
        if after is not None and after.is_free and after.is_mapped:
            block.arena.take(after)
            _join(block, after)
        return block

    def _cut(self, block: _Block, size: int) -> None:
        """Cut a block after so many bytes; the rest is a free block behind it."""
        rest = _Block(block.arena, block.start + size, block.size - size, block.is_mapped)
        block.size = size
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after = rest


def _room(block: _Block) -> int:
    """Return the size of a free block, with what it can grow by."""
    after = block.after
    return block.size + after.size if after is not None and not after.is_mapped else block.size


def _join(block: _Block, after: _Block) -> _Block:
    block.size += after.size
    block.after = after.after
    if after.after is not None:
        after.after.before = block
    return block


def simulate(
    trace: Trace, *, expandable: bool = False, capacity: int | None = None, watch: Watch | None = None
) -> Simulation:
    """Return what PyTorch's allocator would have reserved for a trace.

    Args:
        trace: The allocations and frees.
        expandable: With ``expandable_segments:True``.
        capacity: The device's bytes, where the allocator gives back what is free before it fails; no bound by default.
        watch: A function to call with the part that is done.
    """
    allocator = _Allocator(expandable, capacity)
    slots, sizes, streams = array("I", trace.slots), array("Q", trace.sizes), array("I", trace.streams)
    blocks: dict[int, _Block] = {}
    changes: list[tuple[int, int]] = []
    peak = latest = 0
    fails_at = shortage = None
    for number, slot in enumerate(slots):
        if watch is not None and number % _STEP == 0:
            watch(number / len(slots))
        if slot & FREE:
            allocator.free(blocks.pop(slot & ~FREE))
            continue
        try:
            blocks[slot] = allocator.allocate(sizes[number], streams[number], trace.pools[slot])
        except _OutOfMemory:
            fails_at, shortage = number, allocator.shortage(sizes[number])
            break
        if allocator.reserved != latest:
            latest = allocator.reserved
            peak = max(peak, latest)
            changes.append((number, latest))
    return Simulation(peak, allocator.growths, allocator.retries, fails_at, shortage, changes)
