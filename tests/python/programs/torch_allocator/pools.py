"""Private pools, and what leads requests into them. See torch_calls.py."""

import ctypes

import double
import gpupool
from errors import assert_says, raised
from torch_calls import GRAPHS, MIB, NATIVE, NO_POOL, POOL, Allocator, adopt, call, drop, install, live, main, uninstall
from waiting import in_thread


def compare_pools(allocator):
    seen = []
    allocator.create_pool(0, *POOL)
    seen.append(allocator.pool_use_count(0, *POOL))
    allocator.begin_allocate_to_pool(0, *POOL, -1 & (2**64 - 1))
    seen.append(allocator.pool_use_count(0, *POOL))
    inside = allocator.blocks(4096, 3 * MIB)
    # Another stream, on the same thread.
    call("set_stream", 1)
    inside += allocator.blocks(8192)
    call("set_stream", 0)
    seen.append(allocator.text_of_error("begin_allocate_to_pool", 0, *POOL, 0))
    allocator.end_allocate_to_pool(0, *POOL)
    outside = allocator.blocks(5000)
    seen.append(live(allocator))
    seen.append(live(allocator, POOL))
    seen.append(live(allocator, (0, 77)))
    seen.append(allocator.text_of_error("end_allocate_to_pool", 0, *POOL))
    drop(*inside)
    # What the pool has free is its own.
    other = allocator.blocks(3 * MIB)
    seen.append(live(allocator, POOL))
    drop(*other, *outside)
    return seen


def compare_nested_pools(allocator):
    seen = []
    for pool in ((0, 1), (0, 2)):
        allocator.create_pool(0, *pool)
        allocator.begin_allocate_to_pool(0, *pool, -1 & (2**64 - 1))
    blocks = allocator.blocks(1000)
    allocator.end_allocate_to_pool(0, 0, 2)
    blocks += allocator.blocks(2000)
    # On one stream alone, as a capture.
    call("set_stream", 1)
    call("set_stream", 0)
    allocator.begin_allocate_to_pool(0, *GRAPHS, 1)
    blocks += allocator.blocks(3000)
    call("set_stream", 1)
    blocks += allocator.blocks(4000)
    call("set_stream", 0)
    # The other device has no such pool.
    call("set_device", 1)
    blocks += allocator.blocks(5000)
    call("set_device", 0)
    allocator.end_allocate_to_pool(0, 0, 1)
    blocks += allocator.blocks(6000)
    allocator.end_allocate_to_pool(0, *GRAPHS)
    seen.append(live(allocator))
    seen.append(allocator.pool_use_count(0, *GRAPHS))
    allocator.release_pool(0, *GRAPHS)
    drop(*blocks)
    for pool in ((0, 1), (0, 2)):
        allocator.release_pool(0, *pool)
        allocator.release_pool(0, *pool)
        allocator.empty_cache(*pool)
    allocator.empty_cache(*NO_POOL)
    stats = allocator.device_stats(0)
    return seen, stats["reserved_bytes"]["all"]["current"], stats["allocation"]["all"]["current"]


def check_captures_are_not_spoilt(allocator):
    """Memory of a graph that is reset goes while the next is captured, as in PyTorch's test of that."""
    stream = call("stream_handle", 1)
    call("set_stream", 1)

    def capture(pool, work):
        # As PyTorch does it: the route comes before the capture, and goes after it.
        allocator.begin_allocate_to_pool(0, *pool, 1)
        double.set_capture(stream, 1)
        made = work()
        assert double.is_capturing(stream), "the capture was spoilt"
        double.set_capture(stream, 0)
        allocator.end_allocate_to_pool(0, *pool)
        return made

    first = capture((1, 0), lambda: allocator.block(3 * MIB))
    allocator.release_pool(0, 1, 0)

    def work():
        drop(first)
        return allocator.blocks(3 * MIB, 40 * MIB)

    blocks = capture((2, 0), work)
    allocator.release_pool(0, 2, 0)
    drop(*blocks)
    call("set_stream", 0)
    allocator.empty_cache(*NO_POOL)
    assert allocator.device_stats(0)["reserved_bytes"]["all"]["current"] == 0


def older_graph(allocator, pool):
    """Return a block of a graph that was captured on PyTorch's stream 1."""
    stream = call("stream_handle", 1)
    call("set_stream", 1)
    allocator.begin_capture_to_pool(0, *pool)
    double.set_capture(stream, 1)
    block = allocator.block(3 * MIB)
    double.set_capture(stream, 0)
    allocator.end_allocate_to_pool(0, *pool)
    call("set_stream", 0)
    return block


def spares_the_capture(allocator, stream, number, enter):
    """Return whether a capture that has allocated nothing yet outlasts another thread's end of an older graph."""
    older, pool = (number, 0), (number + 1, 0)
    block = older_graph(allocator, older)

    def reset():
        drop(block)
        allocator.release_pool(0, *older)
        allocator.empty_cache(*older)

    enter()
    allocator.begin_capture_to_pool(0, *pool)
    double.set_capture(stream, 1)
    in_thread(reset)
    is_spared = double.is_capturing(stream)
    double.set_capture(stream, 0)
    allocator.end_allocate_to_pool(0, *pool)
    call("set_stream", 0)
    allocator.release_pool(0, *pool)
    return is_spared


def stream_of_another_library():
    """Return a non-blocking stream that gpupool knows nothing of."""
    stream = ctypes.c_void_p()
    with gpupool.stream(gpupool.Stream(0)):
        assert double.driver.cuStreamCreate(ctypes.byref(stream), 1) == 0, "the double made no stream"
    return stream.value


def check_captures_are_known_before_they_allocate(allocator):
    stream, external = call("stream_handle", 2), stream_of_another_library()
    assert spares_the_capture(allocator, stream, 1, lambda: call("set_stream", 2)), "a stream of PyTorch's own"
    assert spares_the_capture(allocator, external, 3, lambda: call("set_external_stream", external)), "an external one"
    # None is expected once that has ended, nor in a scope, whatever stream is current.
    call("set_external_stream", external)
    allocator.begin_allocate_to_pool(0, *POOL, -1 & (2**64 - 1))
    unknown = stream_of_another_library()
    assert not spares_the_capture(allocator, unknown, 5, lambda: call("set_stream", 0)), "captures are still expected"
    allocator.end_allocate_to_pool(0, *POOL)
    allocator.release_pool(0, *POOL)
    allocator.empty_cache(*NO_POOL)
    assert allocator.device_stats(0)["reserved_bytes"]["all"]["current"] == 0


def check_a_capture_that_failed_is_over_once_its_pool_is_released(allocator):
    call("set_external_stream", stream_of_another_library())
    allocator.begin_capture_to_pool(0, *POOL)
    call("set_stream", 0)
    assert_says(raised(gpupool.InvalidValue, gpupool.synchronize), "is being captured")
    # PyTorch 2.11 tells of no end.
    allocator.release_pool(0, *POOL)
    gpupool.synchronize()
    # Where it does later, nothing is wrong with that.
    allocator.end_allocate_to_pool(0, *POOL)


def check_no_call_for_the_whole_device_begins_before_an_announced_capture(allocator):
    def synchronizes():
        try:
            gpupool.synchronize()
        except gpupool.InvalidValue as error:
            assert_says(error, "is being captured")
            return False
        return True

    call("set_stream", 2)
    allocator.begin_capture_to_pool(0, *POOL)
    assert not in_thread(synchronizes), "it is under way when the capture begins"
    # PyTorch allocates again: the capture did not begin, of which it does not tell.
    in_thread(lambda: drop(allocator.block(4096)))
    assert not in_thread(synchronizes), "another thread's request says nothing of it"
    drop(allocator.block(4096))
    assert in_thread(synchronizes), "it did not begin"
    stream = call("stream_handle", 2)
    double.set_capture(stream, 1)
    assert not in_thread(synchronizes)
    double.set_capture(stream, 0)
    assert in_thread(synchronizes)
    allocator.end_allocate_to_pool(0, *POOL)
    allocator.release_pool(0, *POOL)
    call("set_stream", 0)


def check_a_capture_that_failed_is_over_once_gpupool_is_uninstalled(allocator):
    call("set_external_stream", stream_of_another_library())
    allocator.begin_capture_to_pool(0, *POOL)
    call("set_stream", 0)
    assert_says(raised(gpupool.InvalidValue, gpupool.synchronize), "is being captured")
    # PyTorch tells of no end, and releases no pool.
    assert uninstall() is None
    gpupool.synchronize()
    assert install() is None
    allocator.end_allocate_to_pool(0, *POOL)
    allocator.release_pool(0, *POOL)


def compare_pool_that_ends_before_its_blocks(allocator):
    allocator.create_pool(0, *POOL)
    allocator.begin_allocate_to_pool(0, *POOL, -1 & (2**64 - 1))
    block = allocator.block(4096)
    allocator.end_allocate_to_pool(0, *POOL)
    allocator.release_pool(0, *POOL)
    allocator.release_pool(0, *POOL)
    allocator.empty_cache(*POOL)
    seen = [live(allocator)]
    drop(block)
    allocator.empty_cache(*NO_POOL)
    return seen, allocator.device_stats(0)["reserved_bytes"]["all"]["current"]


def compare_errors_of_pools(allocator):
    return [
        allocator.kind_of_error("create_pool", 7, *POOL),
        allocator.kind_of_error("begin_allocate_to_pool", 7, *POOL, 0),
        allocator.kind_of_error("release_pool", 0, 0, 99),
        allocator.kind_of_error("pool_use_count", 0, 0, 99),
        allocator.kind_of_error("end_allocate_to_pool", 0, 0, 99),
        allocator.kind_of_error("check_pool_live", 0, 0, 99, ""),
        allocator.kind_of_error("take_checkpoint", 0, 0, 99),
        allocator.kind_of_error("set_checkpoint", 0, 0),
    ]


def compare_custom_sources(allocator):
    call("source_calls")
    allocator.create_pool_of_heap(0, *POOL)
    seen = [call("source_calls")]
    allocator.begin_allocate_to_pool(0, *POOL, -1 & (2**64 - 1))
    block = allocator.block(4096)
    seen.append([count > 0 for count in call("source_calls")])
    segments = allocator.snapshot(*POOL, 0)["segments"]
    seen.append([segment["is_expandable"] for segment in segments])
    seen.append((allocator.kind_of_error("allocate", 600 * MIB), allocator.text_of_error("allocate", 600 * MIB)))
    allocator.end_allocate_to_pool(0, *POOL)
    seen.append(allocator.kind_of_error("create_pool_of_heap", 0, *POOL))
    call("source_calls")
    drop(block)
    allocator.release_pool(0, *POOL)
    allocator.release_pool(0, *POOL)
    allocator.empty_cache(*POOL)
    allocator.empty_cache(*NO_POOL)
    seen.append([count > 0 for count in call("source_calls")])
    return seen


def compare_pools_that_help(allocator):
    allocator.create_pool(0, *POOL)
    allocator.begin_allocate_to_pool(0, *POOL, -1 & (2**64 - 1))
    drop(*allocator.blocks(700 * MIB))
    allocator.end_allocate_to_pool(0, *POOL)
    seen = [allocator.kind_of_error("allocate", 600 * MIB)]
    allocator.set_use_on_oom(0, *POOL, 1)
    block = allocator.block(600 * MIB)
    seen.append(live(allocator)[0][0][2])
    drop(block)
    return seen


def compare_unsplit_pools(allocator):
    allocator.create_pool(0, *POOL)
    allocator.set_no_split(0, *POOL)
    allocator.begin_allocate_to_pool(0, *POOL, -1 & (2**64 - 1))
    blocks = allocator.blocks(3 * MIB, 3 * MIB)
    allocator.end_allocate_to_pool(0, *POOL)
    segments = allocator.snapshot(*POOL, 0)["segments"]
    seen = [len(segment["blocks"]) for segment in segments]
    drop(*blocks)
    return seen


class Registered(dict):
    """What PyTorch's registerMemPool registers with NCCL, by its snapshot of the pool and its trackers."""

    def __init__(self, allocator):
        segments = allocator.snapshot(*POOL, 0)["segments"]
        segments.sort(key=lambda segment: segment["registration_counter"])
        # What it asserts.
        assert all(segment["registration_counter"] >= 0 for segment in segments), segments
        super().__init__({segment["address"]: segment["bytes"] for segment in segments})

    def follow(self):
        """Register what has come meanwhile, and deregister what has gone."""
        for event in call("take_noted"):
            if event["pool"] == [*POOL] and event["action"] == "segment_alloc":
                assert self.setdefault(event["address"], event["bytes"]) == event["bytes"]
            elif event["pool"] == [*POOL] and event["action"] == "segment_free":
                assert self.pop(event["address"]) == event["bytes"], "it deregisters what it has registered"
            assert event["action"] not in ("segment_map", "segment_unmap") or event["pool"] != [*POOL]

    def has(self, block):
        return any(start <= block["address"] < start + size for start, size in self.items())


def registration(allocator):
    call("take_noted")
    allocator.begin_allocate_to_pool(0, *POOL, -1 & (2**64 - 1))
    early = allocator.allocate(3 * MIB)
    allocator.attach_tracker()
    registered = Registered(allocator)
    seen = [len(registered), registered.has(early)]
    late = [allocator.allocate(size) for size in (30 * MIB, 50 * MIB)]
    registered.follow()
    seen.append([registered.has(block) for block in (early, *late)])
    drop(early["block"], late[0]["block"])
    allocator.end_allocate_to_pool(0, *POOL)
    registered.follow()
    seen.append(registered.has(early))
    allocator.empty_cache(*POOL)
    registered.follow()
    # PyTorch's own keeps what is free of a pool that is in use.
    seen.append(registered.has(late[1]))
    allocator.release_pool(0, *POOL)
    allocator.release_pool(0, *POOL)
    drop(late[1]["block"])
    allocator.empty_cache(*NO_POOL)
    registered.follow()
    seen.append(len(registered))
    return seen


def compare_registration_of_unsplit_pools(allocator):
    allocator.create_pool(0, *POOL)
    allocator.set_no_split(0, *POOL)
    return registration(allocator)


def compare_registration_of_pools_with_an_allocator(allocator):
    # As pools of ncclMemAlloc have.
    allocator.create_pool_of_heap(0, *POOL)
    return registration(allocator)


def check_pages_that_move_are_not_registered(ours):
    ours.create_pool(0, *POOL)
    ours.begin_allocate_to_pool(0, *POOL, -1 & (2**64 - 1))
    block = ours.block(3 * MIB)
    ours.end_allocate_to_pool(0, *POOL)
    segments = ours.snapshot(*POOL, 0)["segments"]
    # registerMemPool asserts that none is negative.
    assert [segment["registration_counter"] for segment in segments] == [-1]
    drop(block)


def compare_live_allocations(allocator):
    allocator.begin_allocate_to_pool(0, *GRAPHS, -1 & (2**64 - 1))
    first, second = allocator.allocate(4096), allocator.allocate(3 * MIB)
    allocator.end_allocate_to_pool(0, *GRAPHS)
    both = [first["address"], second["address"]]
    seen = [
        allocator.check_pool_live(0, *GRAPHS, " ".join(map(str, expected)))
        for expected in (both, both[:1], [], [*both, 4096], [both[0], 4096])
    ]
    drop(first["block"])
    seen.append(allocator.check_pool_live(0, *GRAPHS, str(both[1])))
    drop(second["block"])
    seen.append(allocator.check_pool_live(0, *GRAPHS, ""))
    return seen


def checkpoints(allocator, pool):
    allocator.begin_allocate_to_pool(0, *pool, -1 & (2**64 - 1))
    kept, dropped = allocator.allocate(4096), allocator.allocate(8192)
    large = allocator.allocate(3 * MIB)
    before = allocator.take_checkpoint(0, *pool)
    drop(dropped["block"])
    later = [allocator.allocate(size) for size in (600, 5 * MIB)]
    names = {kept["address"]: "kept", dropped["address"]: "dropped", large["address"]: "large"}
    # What is at the address of the dropped one is freed as well.
    for index, block in enumerate(later):
        names.setdefault(block["address"], f"later {index}")
    freed_addresses = {kept["address"], large["address"], *(block["address"] for block in later)}
    after = allocator.take_checkpoint(0, *pool)
    for block in (kept, large, *later):
        call("let_go", block["block"])
    delta = allocator.set_checkpoint(0, before)
    seen = [set(delta["freed"]) == freed_addresses]
    seen.append(sorted(names[block["address"]] for block in delta["allocated"]))
    seen.append([(block["device"], block["has_raw_deleter"]) for block in delta["allocated"]])
    addresses = " ".join(str(block["address"]) for block in (kept, dropped, large))
    seen.append(allocator.check_pool_live(0, *pool, addresses))
    for block in delta["allocated"]:
        call("let_go", block["block"])
    # And back: the state after, of which all is live again.
    delta = allocator.set_checkpoint(0, after)
    seen.append({block["address"] for block in delta["allocated"]} == freed_addresses)
    drop(*(block["block"] for block in delta["allocated"]))
    seen.append(allocator.check_pool_live(0, *pool, ""))
    allocator.end_allocate_to_pool(0, *pool)
    allocator.release_pool(0, *pool)
    seen.append(allocator.kind_of_error("set_checkpoint", 0, before))
    call("drop_checkpoint", before)
    call("drop_checkpoint", after)
    return seen


def compare_checkpoints(allocator):
    """Check what graph trees do: replay, and record anew from where another branch began."""
    # The second number is as graph_pool_handle() gives it.
    return checkpoints(allocator, GRAPHS), checkpoints(allocator, (0, 2))


def check_pools_of_before(ours):
    """A pool that was made before gpupool was installed is used afterwards, and one of gpupool's after it was not."""
    native = Allocator(NATIVE)
    everything = -1 & (2**64 - 1)
    assert uninstall() is None
    ours.create_pool(0, 0, 5)
    assert native.pool_use_count(0, 0, 5) == 1
    assert install() is None
    ours.begin_allocate_to_pool(0, 0, 5, everything)
    block = ours.block(4096)
    assert native.device_stats(0)["allocation"]["all"]["current"] == 1
    ours.end_allocate_to_pool(0, 0, 5)
    ours.create_pool(0, 0, 6)
    assert uninstall() is None
    ours.begin_allocate_to_pool(0, 0, 6, everything)
    inside = ours.block(4096)
    ours.end_allocate_to_pool(0, 0, 6)
    assert native.device_stats(0)["allocation"]["all"]["current"] == 1
    assert gpupool.memory_stats().live_blocks == 1
    for pool in (5, 6):
        assert ours.pool_use_count(0, 0, pool) == 2
        ours.set_use_on_oom(0, 0, pool, 0)
        ours.release_pool(0, 0, pool)
        ours.release_pool(0, 0, pool)
        ours.empty_cache(0, pool)
    drop(block, inside)
    assert install() is None


def check_names_of_pools(ours):
    """A pool of gpupool's is shown by a number that PyTorch gives to none, and can be used by it."""
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        block = ours.block(4096)
    shown = [part + (1 << 32) if part else 0 for part in pool.id]
    assert live(ours)[0] == [(0, 0, 4096, *shown)]
    assert [entry[2] for entry in live(ours, tuple(shown))[0]] == [4096]
    everything = -1 & (2**64 - 1)
    ours.begin_allocate_to_pool(0, *shown, everything)
    inside = ours.block(8192)
    # The innermost of both kinds of scopes is the one.
    inner = gpupool.MemPool()
    with gpupool.use_mem_pool(inner):
        third = ours.block(600)
        ours.begin_allocate_to_pool(0, *GRAPHS, everything)
        fourth = ours.block(700)
        ours.end_allocate_to_pool(0, *GRAPHS)
    ours.end_allocate_to_pool(0, *shown)
    assert ours.pool_use_count(0, *shown) == 1
    found = {entry[2]: entry[3:] for entry in live(ours)[0]}
    others = [part + (1 << 32) if part else 0 for part in inner.id]
    assert found == {4096: tuple(shown), 8192: tuple(shown), 600: tuple(others), 700: GRAPHS}, found
    ours.release_pool(0, *shown)
    ours.release_pool(0, *GRAPHS)
    assert ours.kind_of_error("begin_allocate_to_pool", 0, 0, (1 << 32) + 999, everything) == "RuntimeError"
    drop(block, inside, third, fourth)


def compare_an_emptied_cache_in_a_pool(allocator):
    allocator.create_pool(0, *POOL)
    drop(allocator.block(3 * MIB))
    allocator.begin_allocate_to_pool(0, *POOL, -1 & (2**64 - 1))
    drop(allocator.block(3 * MIB))
    allocator.empty_cache(*NO_POOL)
    seen = [allocator.device_stats(0)["reserved_bytes"]["all"]["current"] > 0]
    seen.append(len(allocator.snapshot(*POOL, 0)["segments"]))
    allocator.end_allocate_to_pool(0, *POOL)
    for _ in range(2):
        allocator.release_pool(0, *POOL)
    allocator.empty_cache(*NO_POOL)
    return seen, allocator.device_stats(0)["reserved_bytes"]["all"]["current"]


def check_a_pool_of_ours_is_one_of_pytorchs(ours):
    pool, other = gpupool.MemPool(), gpupool.MemPool()
    ours.create_pool(0, *POOL)
    assert adopt(0, POOL, pool.id) is None
    assert pool.use_count() == 2
    ours.begin_allocate_to_pool(0, *POOL, -1 & (2**64 - 1))
    inside = ours.block(4096)
    assert ours.pool_use_count(0, *POOL) == 2
    ours.end_allocate_to_pool(0, *POOL)
    ours.release_pool(0, *POOL)
    with gpupool.use_mem_pool(pool):
        other_inside = ours.block(8192)
    assert pool.stats().live_blocks == 2
    assert [entry[2:] for entry in live(ours, POOL)[0]] == [(4096, *POOL), (8192, *POOL)]
    # What is wrong changes nothing.
    for device, torch_id, own_id in ((0, (0, 99), other.id), (0, POOL, (0, 1 << 40)), (7, POOL, other.id)):
        assert adopt(device, torch_id, own_id) is not None
    assert other.use_count() == 1
    ours.release_pool(0, *POOL)
    assert pool.use_count() == 1
    drop(inside, other_inside)


if __name__ == "__main__":
    main(globals())
