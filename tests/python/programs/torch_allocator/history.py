"""Snapshots, what they say of the past, and who watches. See torch_calls.py."""

from torch_calls import ALL, ALLOC, FREES, GRAPHS, MIB, NEVER, NO_POOL, STATE, VERSION, call, drop, live, main


def compare_snapshots(allocator):
    blocks = allocator.blocks(1, 700, 3 * MIB)
    call("set_stream", 2)
    blocks += allocator.blocks(4096, 2 * MIB)
    call("set_stream", 0)
    call("set_device", 1)
    blocks += allocator.blocks(5000)
    call("set_device", 0)
    drop(blocks.pop(1))
    seen = live(allocator)
    drop(*blocks)
    return seen, live(allocator), allocator.snapshot(0, 0, 0)["traces"]


def compare_history(allocator):
    seen = []
    keys = "bytes", "stream", "pool", "context", "compile_context", "metadata", "device"
    for when in (NEVER, STATE, ALLOC, ALL):
        call("number_of_contexts_taken")
        allocator.record(when)
        seen.append(allocator.is_history_enabled())
        call("set_doing", "first")
        first = allocator.block(1000)
        allocator.push_compile_context("graph 7")
        call("set_doing", "second")
        second = allocator.block(2 * MIB)
        allocator.pop_compile_context()
        call("set_doing", "freeing")
        drop(first)
        contexts = [
            block["context"]
            for segment in allocator.snapshot(0, 0, 0)["segments"]
            for block in segment["blocks"]
            if block["allocated"]
        ]
        seen.append((when, contexts, allocator.events(*keys)))
        if VERSION >= (2, 12):
            address = [event for event in allocator.snapshot(0, 0, 1)["traces"][0] if event["bytes"] == 2 * MIB]
            seen.append([allocator.context_for_pointer(event["address"]) for event in address[:1]])
            seen.append(allocator.context_for_pointer(0xDEAD000))
        drop(second)
        allocator.record_history(0, 0, 1, NEVER, 1, "")
        seen.append([allocator.is_history_enabled(), allocator.events()])
        allocator.empty_cache(*NO_POOL)
    seen.append(allocator.kind_of_error("record_history", 1, 0, 10, ALL, 1, ""))
    return seen


def compare_contexts_after_a_recording(allocator):
    def contexts():
        blocks = [block for segment in allocator.snapshot(0, 0, 0)["segments"] for block in segment["blocks"]]
        return sorted((block["requested"], block["context"]) for block in blocks if block["allocated"])

    seen = []
    for when in (NEVER, STATE, ALL):
        unseen = allocator.block(5 * MIB)
        allocator.record(when)
        call("set_doing", "kept")
        kept, freed = allocator.block(2 * MIB), allocator.block(3000)
        allocator.record_history(0, 0, 1, NEVER, 1, "")
        seen.append(contexts())
        drop(freed)
        call("set_doing", "later")
        later = allocator.block(3000)
        seen.append(contexts())
        # Another recording ends without what it has not seen.
        allocator.record(ALL)
        drop(kept)
        allocator.record_history(0, 0, 1, NEVER, 1, "")
        seen.append(contexts())
        drop(unseen, later)
        seen.append(contexts())
    return seen


def compare_contexts_of_memory_that_goes(allocator):
    seen = []
    for when in (NEVER, STATE, ALLOC, ALL):
        allocator.empty_cache(*NO_POOL)
        allocator.record(when)
        call("set_doing", "allocating")
        block = allocator.block(32 * MIB)
        call("set_doing", "freeing")
        drop(block)
        call("set_doing", "giving back")
        allocator.empty_cache(*NO_POOL)
        seen.append([event[-1] for event in allocator.events("context", actions=("segment_free", "segment_unmap"))])
        allocator.record_history(0, 0, 1, NEVER, 1, "")
    return seen


def compare_metadata(allocator):
    allocator.record(ALL)
    allocator.set_user_metadata("epoch 3")
    block = allocator.block(4096)
    seen = [allocator.get_user_metadata()]
    allocator.set_user_metadata("epoch 4")
    drop(block)
    allocator.set_user_metadata("")
    allocator.record_annotation("name", "forward")
    events = allocator.events("metadata", "compile_context")
    return seen, events, allocator.snapshot(0, 0, 1)["annotations"], allocator.snapshot(0, 0, 0)["annotations"]


def compare_which_events_are_kept(allocator):
    seen = []
    allocator.record(ALL, skipped="free_requested free_completed")
    drop(*allocator.blocks(1000, 2000))
    seen.append(allocator.events("bytes"))
    # Without clearing, what was recorded stays.
    allocator.record(ALL, clear=False)
    drop(*allocator.blocks(3000))
    seen.append(allocator.events("bytes"))
    allocator.record(ALL, clear=True)
    drop(*allocator.blocks(4000))
    seen.append(allocator.events("bytes"))
    allocator.record(ALL, most=2, skipped="segment_alloc segment_map")
    drop(*allocator.blocks(5000))
    seen.append(allocator.events("bytes"))
    actions = {event[0] for event in allocator.events(actions=("snapshot",))}
    seen.append(actions)
    seen.append(allocator.kind_of_error("record_history", 1, 1, 10, ALL, 1, "no_such_action"))
    return [sorted(each) if isinstance(each, set) else each for each in seen]


def compare_snapshot_events(allocator):
    allocator.record(ALL)
    block = allocator.block(512)
    allocator.snapshot(0, 0, 1)
    (first, *_) = [event for event in allocator.snapshot(0, 0, 1)["traces"][0] if event["action"] == "snapshot"]
    drop(block)
    return first["address"], first["bytes"], first["stream"], first["pool"]


def compare_annotated_memory(allocator):
    if VERSION < (2, 14):
        return None
    seen = [allocator.supports_user_metadata()]
    allocator.record(ALL)
    block = allocator.allocate(4096)
    allocator.annotate_memory(block["address"], "weights")
    annotated = [event for event in allocator.snapshot(0, 0, 1)["traces"][0] if event["action"] == "annotate"]
    seen.append([(event["address"] == block["address"], event["metadata"]) for event in annotated])
    seen.append(allocator.kind_of_error("annotate_memory", 0xDEAD000, "none"))
    drop(block["block"])
    return seen


def compare_trackers(allocator):
    call("take_noted")
    allocator.attach_tracker()
    allocator.attach_tracker()
    drop(*allocator.blocks(1000))
    allocator.begin_allocate_to_pool(0, *GRAPHS, -1 & (2**64 - 1))
    drop(*allocator.blocks(2 * MIB))
    allocator.end_allocate_to_pool(0, *GRAPHS)
    allocator.release_pool(0, *GRAPHS)
    allocator.empty_cache(*NO_POOL)
    events = call("take_noted")
    blocks = [
        (event["action"], event["bytes"], event["pool"]) for event in events if event["action"] in ("alloc", *FREES)
    ]
    segments = [event for event in events if event["action"].startswith("segment")]
    taken = sum(event["bytes"] for event in segments if event["action"] in ("segment_alloc", "segment_map"))
    given = sum(event["bytes"] for event in segments if event["action"] in ("segment_free", "segment_unmap"))
    return blocks, taken > 0, taken == given


def compare_profiles(allocator):
    call("profile", 1)
    blocks = allocator.blocks(1000, 3 * MIB)
    raw = allocator.raw_alloc(5000)
    drop(*blocks)
    allocator.raw_delete(raw)
    call("profile", 0)
    drop(*allocator.blocks(1000))
    seen, addresses = [], []
    for event in call("take_noted"):
        if event["address"] not in addresses:
            addresses.append(event["address"])
        # Each allocator rounds as it does.
        seen.append((addresses.index(event["address"]), event["bytes"] > 0, event["device"]))
    return seen


def check_failing_trackers(ours):
    """What a tracker throws reaches the caller, and the block that it was told of is not lost."""
    ours.attach_tracker()
    call("let_trackers_throw", 1)
    assert ours.text_of_error("allocate", 4096) == "a tracker that fails"
    call("let_trackers_throw", 0)
    assert ours.device_stats(0)["allocation"]["all"]["current"] == 0
    drop(*ours.blocks(4096))


if __name__ == "__main__":
    main(globals())
