"""The address map: where the blocks are at a moment, in the order of their addresses, without the gaps between regions.

The map of a snapshot shows the moment when it was written, for its segments are those of then. Of any other moment the
trace tells what was live; memory that the program used at another time is free there.
"""

from gpupool._plot.picture import AddressMap, Place, Region, State
from gpupool._plot.pools import Pools
from gpupool._plot.timeline import Timeline, unpack
from gpupool._report.units import size
from gpupool._traces.trace import FREE, TraceFile

# About the most blocks that are drawn one by one: more would be too thin to be seen, and too many for a page.
MOST = 20_000
# The size of a page: smaller gaps do not end a region.
PAGE = 2 << 20
STATES: dict[str, State] = {"active_allocated": "live", "active_pending_free": "waiting"}


def of_segments(file: TraceFile, pools: Pools, title: str) -> AddressMap:
    """Return the map of the moment when the snapshot was written."""
    regions, blocks = [], []
    start = 0
    for number, segment in enumerate(file.segments):
        pool = pools.place(segment.pool)
        regions.append(Region(start, segment.address, segment.size, f"{segment.kind} segment".lstrip()))
        for block in segment.blocks:
            state = STATES.get(block.state, "free")
            requested = 0 if state == "free" else block.requested
            at = start + block.address - segment.address
            blocks.append(Place(at, block.size, state, pool, number, requested, segment.stream, block.stack))
        if not segment.blocks:
            # A file may tell of a segment without what is in it.
            _free_until(blocks, start, start + segment.size, number)
        start += segment.size
    return _map(title, regions, blocks, pools, file.call_stacks, "free, cached by the allocator", "segment")


def of_event(timeline: Timeline, event: int, title: str) -> AddressMap:
    """Return the map of the moment after an event."""
    trace = timeline.trace
    slots, sizes, streams = unpack("I", trace.slots), unpack("Q", trace.sizes), unpack("I", trace.streams)
    live: dict[int, int] = {}
    used: set[tuple[int, int]] = set()
    slot_sizes: list[int] = []
    slot_streams: list[int] = []
    for number, (slot, nbytes, stream) in enumerate(zip(slots, sizes, streams, strict=True)):
        if slot & FREE:
            if number <= event:
                del live[slot ^ FREE]
            continue
        slot_sizes.append(nbytes)
        slot_streams.append(trace.stream_names[stream])
        used.add((trace.addresses[slot], nbytes))
        if number <= event:
            live[slot] = trace.addresses[slot]
    regions = _regions(used)
    blocks: list[Place] = []
    filled = 0
    place = 0
    for slot, address in sorted(live.items(), key=lambda item: item[1]):
        while address >= regions[place].address + regions[place].size:
            filled = _free_until(blocks, filled, regions[place].start + regions[place].size, place)
            place += 1
        region = regions[place]
        start = region.start + address - region.address
        filled = _free_until(blocks, filled, start, place)
        nbytes = slot_sizes[slot]
        pool = timeline.pools.place(trace.pool_ids[trace.pools[slot]])
        stream, stack = slot_streams[slot], trace.stacks[slot]
        blocks.append(Place(start, nbytes, "live", pool, place, nbytes, stream, stack))
        filled = max(filled, start + nbytes)
    for number in range(place, len(regions)):
        filled = _free_until(blocks, filled, regions[number].start + regions[number].size, number)
    free = "free then, used at another time"
    return _map(title, regions, blocks, timeline.pools, trace.call_stacks, free, "region")


def _regions(used: set[tuple[int, int]]) -> list[Region]:
    """Return the addresses that were ever used, without gaps of more than a page."""
    spans: list[tuple[int, int]] = []
    for address, nbytes in sorted(used):
        if spans and address <= spans[-1][1] + PAGE:
            spans[-1] = spans[-1][0], max(spans[-1][1], address + nbytes)
        else:
            spans.append((address, address + nbytes))
    regions: list[Region] = []
    start = 0
    for address, end in spans:
        regions.append(Region(start, address, end - address, "region"))
        start += end - address
    return regions


def _free_until(blocks: list[Place], filled: int, start: int, region: int) -> int:
    if start > filled:
        blocks.append(Place(filled, start - filled, "free", 0, region))
    return max(filled, start)


def _map(
    title: str,
    regions: list[Region],
    blocks: list[Place],
    pools: Pools,
    stacks: list[tuple[str, ...]],
    free_label: str,
    what: str,
) -> AddressMap:
    nbytes = sum(region.size for region in regions)
    live = sum(block.size for block in blocks if block.state != "free")
    count = sum(block.state != "free" for block in blocks)
    note = f"{size(live)} of {size(nbytes)} in use, in {_count(count, 'block')} of {_count(len(regions), what)}."
    merged = merge(blocks, nbytes, MOST)
    if len(merged) < len(blocks):
        note += " Blocks too small to be seen are drawn together."
    # The map has only the call stacks that are drawn.
    numbers = {stack: place for place, stack in enumerate(sorted({0, *(block.stack for block in merged)}))}
    for block in merged:
        block.stack = numbers[block.stack]
    drawn = {block.colour for block in merged if block.state != "free"}
    names = [(*name, number in drawn) for number, name in enumerate(pools.names)]
    return AddressMap(
        title=title,
        size=nbytes,
        names=names,
        regions=regions,
        blocks=merged,
        stacks=[stacks[stack] for stack in numbers],
        free_label=free_label,
        region_label=f"a {what} begins",
        note=note,
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def merge(blocks: list[Place], nbytes: int, most: int) -> list[Place]:
    """Return the blocks; if there are more than `most`, with neighbours that are too small to be seen made one."""
    if len(blocks) <= most:
        return blocks
    small = max(1, 2 * nbytes // most)
    merged: list[Place] = []
    for block in blocks:
        last = merged[-1] if merged else None
        if last is None or last.region != block.region or block.size >= small or last.size >= small:
            merged.append(block)
            continue
        live = 0 if block.state == "free" else block.size
        last_live = last.live if last.count > 1 else 0 if last.state == "free" else last.size
        # The merged block looks like the larger part of what it stands for.
        if block.size > last.size // last.count:
            last.colour = block.colour if live else last.colour
        last.size = block.start + block.size - last.start
        last.count += block.count
        last.live = last_live + live
        last.state = "live" if 2 * last.live >= last.size else "free"
        last.requested, last.stream, last.stack = 0, None, 0
    return merged
