"""The same calls on PyTorch's own CUDA allocator and on gpupool in its place, in one process, and what both answer.

A comparison is a function of an allocator: what it returns must be the same for both. A check is of gpupool alone.
Arguments: the library of calls, gpupool's allocator for PyTorch, and the name of a function.
"""

import ctypes
import json
import os
import sys

import gpupool

MIB = 1 << 20
NATIVE, OURS = 0, 1
NEVER, STATE, ALLOC, ALL = range(4)
NO_POOL = (0, 0)
FREES = "free_requested", "free_completed"

calls = ctypes.CDLL(sys.argv[1])
library = ctypes.CDLL(sys.argv[2])
driver = ctypes.CDLL("libcuda.so.1")


class Failed(Exception):
    """What PyTorch threw."""

    def __init__(self, kind, text):
        super().__init__(kind, text)
        self.kind, self.text = kind, text


def call(name, *arguments):
    function = calls[name]
    function.restype = ctypes.c_char_p
    converted = []
    for argument in arguments:
        if isinstance(argument, float):
            converted.append(ctypes.c_double(argument))
        elif isinstance(argument, str):
            converted.append(ctypes.c_char_p(argument.encode()))
        else:
            converted.append(ctypes.c_ulonglong(argument))
    # PyTorch writes the numbers of devices as letters.
    answer = json.loads(function(*converted).decode(errors="replace"), strict=False)
    if "error" in answer:
        raise Failed(answer["error"], answer["text"])
    return answer["is"]


VERSION = tuple(int(part) for part in call("version").split(".")[:2])


class Allocator:
    """One of the two."""

    def __init__(self, which):
        self.which = which

    def __getattr__(self, name):
        return lambda *arguments: call(name, self.which, *arguments)

    def kind_of_error(self, name, *arguments):
        try:
            getattr(self, name)(*arguments)
        except Failed as error:
            return error.kind
        return None

    def text_of_error(self, name, *arguments):
        try:
            getattr(self, name)(*arguments)
        except Failed as error:
            return error.text
        return ""

    def block(self, nbytes):
        return self.allocate(nbytes)["block"]

    def blocks(self, *sizes):
        return [self.block(size) for size in sizes]

    def record(self, when=ALL, most=1000, skipped="", clear=True):
        self.record_history(1, 1, most, when, clear, skipped)

    def events(self, *keys, actions=("alloc", *FREES), device=0):
        """Return what was recorded of a device's blocks: of each event, the action and these keys."""
        traces = self.snapshot(0, 0, 1)["traces"]
        trace = traces[device] if device < len(traces) else []
        return [[event["action"], *(event[key] for key in keys)] for event in trace if event["action"] in actions]


def drop(*blocks):
    for block in blocks:
        call("drop", block)


def set_pending(is_pending):
    """Let no event of any stream be done, or all."""
    os.environ["FAKE_FAIL"] = "cuEventQuery=600" if is_pending else ""


def table():
    point = ctypes.pythonapi.PyCapsule_GetPointer
    point.restype, point.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_void_p(point(gpupool.c_api.capsule, b"gpupool.c_api"))


def install():
    library.gpupool_torch_install.restype = ctypes.c_char_p
    return library.gpupool_torch_install(table())


def uninstall():
    library.gpupool_torch_uninstall.restype = ctypes.c_char_p
    return library.gpupool_torch_uninstall()


# Comparisons.


def compare_blocks(allocator):
    seen = []
    for size in [0, 1, 511, 512, 4096, MIB, MIB + 1, 20 * MIB]:
        block = allocator.allocate(size)
        described = {key: block[key] for key in ("device", "is_simple", "has_raw_deleter")}
        drop(block["block"])
        again = allocator.allocate(size)
        seen.append((described, again["address"] == block["address"], again["address"] % 512, bool(again["address"])))
        drop(again["block"])
    call("set_device", 1)
    seen.append(allocator.allocate(4096)["device"])
    call("set_device", 0)
    return seen


def compare_raw_blocks(allocator):
    seen = [allocator.raw_alloc(0), allocator.raw_alloc_with_stream(0, 1)]
    first, second = allocator.raw_alloc(4096), allocator.raw_alloc_with_stream(4096, 1)
    seen.append(first != second)
    allocator.raw_delete(0)
    allocator.raw_delete(first)
    allocator.raw_delete(second)
    # Twice, of the middle of a block, and of what is none.
    seen += [allocator.kind_of_error("raw_delete", address) for address in (first, second, 0xDEAD000)]
    live = allocator.raw_alloc(4096)
    seen.append(allocator.kind_of_error("raw_delete", live + 512))
    seen.append(allocator.kind_of_error("base_allocation", live + 512))
    allocator.raw_delete(live)
    seen.append(allocator.kind_of_error("base_allocation", 0xDEAD000))
    return seen


COUNTS = "allocation", "active", "requested_bytes"


def counted(allocator, device=0):
    stats = allocator.device_stats(device)
    for kind in ("all", "small", "large"):
        allocated, requested, active = (
            stats[name][kind] for name in ("allocated_bytes", "requested_bytes", "active_bytes")
        )
        assert requested["current"] <= active["current"]
        assert allocated["current"] <= active["current"]
        assert allocated["allocated"] - allocated["freed"] <= allocated["current"]
        for name, array in stats.items():
            if isinstance(array, dict) and kind in array:
                stat = array[kind]
                assert 0 <= stat["current"] <= stat["peak"], (name, kind, stat)
    assert stats["active_bytes"]["all"]["current"] <= stats["reserved_bytes"]["all"]["current"]
    for name, array in stats.items():
        # Of free blocks, gpupool counts those that it finds.
        if isinstance(array, dict) and "small" in array and not name.startswith("inactive"):
            for key in ("current", "allocated", "freed"):
                assert array["all"][key] == array["small"][key] + array["large"][key], (name, key, array)
    return {name: stats[name] for name in COUNTS}


def compare_statistics(allocator):
    for device in (0, 1):
        allocator.reset_accumulated_stats(device)
        allocator.reset_peak_stats(device)
    seen = [counted(allocator)]
    blocks = allocator.blocks(1, 1000, MIB, MIB + 1, 5 * MIB, 0)
    seen.append(counted(allocator))
    drop(blocks[1], blocks[4])
    seen.append(counted(allocator))
    allocator.reset_peak_stats(0)
    seen.append(counted(allocator))
    allocator.reset_accumulated_stats(0)
    blocks += allocator.blocks(2000)
    seen.append(counted(allocator))
    seen.append(counted(allocator, 1))
    stats = allocator.device_stats(0)
    seen.append({name: stats[name] for name in ("num_alloc_retries", "num_ooms", "oversize_allocations")})
    seen.append(stats["max_split_size"])
    drop(*blocks)
    seen.append([allocator.kind_of_error("device_stats", device) for device in (2, -1)])
    seen.append([allocator.text_of_error("reset_peak_stats", 7), allocator.text_of_error("reset_accumulated_stats", 7)])
    return seen


def compare_memory_given_back(allocator):
    block = allocator.block(50 * MIB)
    free, total = allocator.memory_info(0)
    drop(block)
    reserved = allocator.device_stats(0)["reserved_bytes"]["all"]["current"]
    allocator.empty_cache(*NO_POOL)
    after = allocator.device_stats(0)
    more_free = allocator.memory_info(0)[0]
    return (
        total,
        reserved >= 50 * MIB,
        after["reserved_bytes"]["all"]["current"],
        more_free >= free + 50 * MIB,
        after["num_device_alloc"] > 0,
        after["num_device_free"] > 0,
    )


def compare_recorded_streams(allocator):
    seen = []
    block = allocator.allocate(4096)
    call("set_stream", 1)
    allocator.record_stream(block["block"], 1)
    call("set_stream", 0)
    set_pending(True)
    drop(block["block"])
    stats = allocator.device_stats(0)
    seen.append([stats[name]["all"]["current"] for name in ("allocation", "active")])
    (waiting,) = [
        piece for segment in allocator.snapshot(0, 0, 0)["segments"] for piece in segment["blocks"] if piece["active"]
    ]
    seen.append([waiting["allocated"], waiting["requested"]])
    other = allocator.allocate(4096)
    seen.append(other["address"] != block["address"])
    set_pending(False)
    third = allocator.block(4096)
    seen.append(counted(allocator)["active"]["all"]["current"])
    # The same stream again says nothing; neither does a block without memory, or one of another's.
    allocator.record_stream(third, 0)
    empty = allocator.block(0)
    allocator.record_stream(empty, 1)
    drop(other["block"], third, empty)
    allocator.block(512)
    seen.append(counted(allocator)["active"]["all"]["current"])
    return seen


def live(allocator, *ids):
    info = allocator.snapshot(*(ids or (NO_POOL,))[0], 0)
    found = []
    for segment in info["segments"]:
        assert segment["bytes"] == sum(block["bytes"] for block in segment["blocks"])
        for total, key, state in (("allocated", "bytes", "allocated"), ("active", "bytes", "active")):
            assert segment[total] == sum(block[key] for block in segment["blocks"] if block[state])
        assert segment["requested"] == sum(block["requested"] for block in segment["blocks"] if block["active"])
        assert segment["registration_counter"] >= 0
        for block in segment["blocks"]:
            assert block["active"] or not block["context"]
            if block["active"]:
                found.append(
                    (segment["device"], segment["stream"], block["requested"], segment["is_large"], *segment["pool"])
                )
    return sorted(found), info["settings"]


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


POOL = (0, 1)
GRAPHS = (1, 0)


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
    seen.append((allocator.kind_of_error("allocate", 2 << 30), allocator.text_of_error("allocate", 2 << 30)))
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
    allocator.set_use_on_oom(0, *POOL, 1)
    allocator.begin_allocate_to_pool(0, *POOL, -1 & (2**64 - 1))
    drop(*allocator.blocks(700 * MIB))
    allocator.end_allocate_to_pool(0, *POOL)
    block = allocator.block(600 * MIB)
    seen = [live(allocator)[0][0][2:4]]
    drop(block)
    allocator.set_use_on_oom(0, *POOL, 0)
    seen.append(allocator.kind_of_error("allocate", 600 * MIB))
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


def compare_checkpoints(allocator):
    """Check what graph trees do: replay, and record anew from where another branch began."""
    allocator.begin_allocate_to_pool(0, *GRAPHS, -1 & (2**64 - 1))
    kept, dropped = allocator.allocate(4096), allocator.allocate(8192)
    large = allocator.allocate(3 * MIB)
    before = allocator.take_checkpoint(0, *GRAPHS)
    drop(dropped["block"])
    later = [allocator.allocate(size) for size in (600, 5 * MIB)]
    names = {kept["address"]: "kept", dropped["address"]: "dropped", large["address"]: "large"}
    # What is at the address of the dropped one is freed as well.
    for index, block in enumerate(later):
        names.setdefault(block["address"], f"later {index}")
    freed_addresses = {kept["address"], large["address"], *(block["address"] for block in later)}
    after = allocator.take_checkpoint(0, *GRAPHS)
    for block in (kept, large, *later):
        call("let_go", block["block"])
    delta = allocator.set_checkpoint(0, before)
    seen = [set(delta["freed"]) == freed_addresses]
    seen.append(sorted(names[block["address"]] for block in delta["allocated"]))
    seen.append([(block["device"], block["has_raw_deleter"]) for block in delta["allocated"]])
    addresses = " ".join(str(block["address"]) for block in (kept, dropped, large))
    seen.append(allocator.check_pool_live(0, *GRAPHS, addresses))
    for block in delta["allocated"]:
        call("let_go", block["block"])
    # And back: the state after, of which all is live again.
    delta = allocator.set_checkpoint(0, after)
    seen.append({block["address"] for block in delta["allocated"]} == freed_addresses)
    drop(*(block["block"] for block in delta["allocated"]))
    seen.append(allocator.check_pool_live(0, *GRAPHS, ""))
    allocator.end_allocate_to_pool(0, *GRAPHS)
    allocator.release_pool(0, *GRAPHS)
    seen.append(allocator.kind_of_error("set_checkpoint", 0, before))
    call("drop_checkpoint", before)
    call("drop_checkpoint", after)
    return seen


def compare_too_large(allocator):
    seen = []
    allocator.attach_oom_observer()
    allocator.reset_accumulated_stats(0)
    allocator.record(ALL)
    call("profile", 1)
    for size in (2000 * MIB, 1 << 50, 1 << 60):
        seen.append((allocator.kind_of_error("allocate", size), allocator.text_of_error("allocate", size)[:40]))
    call("profile", 0)
    saw = call("take_noted")
    watched = [event for event in saw if event["saw"] == "oom"]
    seen.append([[event[key] for key in ("device", "bytes", "total")] for event in watched])
    seen.append([event["free"] > 0 for event in watched])
    seen.append([event["bytes"] for event in saw if event["saw"] == "oom in profiler"])
    seen.append(allocator.device_stats(0)["num_ooms"])
    recorded = [event for event in allocator.snapshot(0, 0, 1)["traces"][0] if event["action"] == "oom"]
    seen.append([event["bytes"] for event in recorded])
    free = allocator.memory_info(0)[0]
    seen.append([abs(event["address"] - free) < 64 * MIB for event in recorded])
    # Afterwards all is as before.
    drop(*allocator.blocks(100 * MIB))
    return seen


def compare_callbacks(allocator):
    block = allocator.block(600 * MIB)
    call("give_when_short", block)
    other = allocator.block(700 * MIB)
    seen = [call("give_when_short", 0) > 0]
    drop(other)
    return seen


def compare_fraction(allocator):
    seen = [allocator.get_memory_fraction(0)]
    allocator.set_memory_fraction(0.25, 0)
    seen.append(allocator.get_memory_fraction(0))
    seen.append(allocator.get_memory_fraction(1))
    seen.append((allocator.kind_of_error("allocate", 300 * MIB), allocator.kind_of_error("allocate", 200 * MIB)))
    for fraction, device in ((1.5, 0), (-0.1, 0), (0.5, 2)):
        seen.append(allocator.kind_of_error("set_memory_fraction", fraction, device))
    seen.append(allocator.kind_of_error("get_memory_fraction", 2))
    allocator.set_memory_fraction(1.0, 0)
    drop(*allocator.blocks(300 * MIB))
    return seen


def compare_cache_info(allocator):
    allocator.empty_cache(*NO_POOL)
    free = allocator.memory_info(0)[0]
    seen = [abs(allocator.cache_info(0, 0) - free) <= 64 * MIB]
    drop(*allocator.blocks(100 * MIB))
    seen.append(allocator.cache_info(0, 1) >= 100 * MIB)
    seen.append(allocator.cache_info(0, 1) < 200 * MIB)
    seen.append(allocator.cache_info(0, 500 * MIB) == 500 * MIB)
    return seen


def compare_bases(allocator):
    first, second = (allocator.allocate(4096) for _ in range(2))
    base = allocator.base_allocation(second["address"])
    return base["base"] <= first["address"] < base["base"] + base["bytes"] if base["base"] else None


def compare_copies(allocator):
    first, second = (allocator.allocate(4096)["address"] for _ in range(2))
    call("set_device", 1)
    far = allocator.allocate(4096)["address"]
    call("set_device", 0)
    seen = []
    ctypes.memset(first, 0x5A, 4096)
    allocator.copy_data(second, first, 4096)
    seen.append(ctypes.string_at(second, 4) == b"ZZZZ")
    runtime = ctypes.CDLL("libcudart.so.13")
    runtime.double_copied_by.restype = ctypes.c_char_p
    for p2p_enabled in (1, 0):
        seen.append(allocator.memcpy_async(far, 1, first, 0, 4096, p2p_enabled))
        seen.append(allocator.memcpy_async(second, 0, first, 0, 4096, p2p_enabled))
        seen.append(runtime.double_copied_by().decode())
    allocator.enable_peer_access(0, 1)
    allocator.enable_peer_access(0, 1)
    seen.append(allocator.kind_of_error("enable_peer_access", 0, 7) is not None)
    return seen


def compare_caching_disabled(allocator):
    before = allocator.block(4096)
    allocator.enable(0)
    seen = [allocator.is_enabled()]
    counts = allocator.device_stats(0)["allocation"]["all"]["current"]
    block = allocator.allocate(4096)
    seen += [block["is_simple"], block["has_raw_deleter"]]
    seen.append(allocator.device_stats(0)["allocation"]["all"]["current"] - counts)
    address = allocator.raw_alloc(4096)
    allocator.raw_delete(address)
    drop(block["block"], before)
    allocator.enable(1)
    seen.append(allocator.is_enabled())
    drop(*allocator.blocks(4096))
    return seen


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


def compare_threads(allocator):
    failures = allocator.turn_over(8, 500)
    return failures, allocator.device_stats(0)["allocation"]["all"]["current"]


def compare_rest(allocator):
    seen = [allocator.initialized(), allocator.name(), allocator.expandable_segment_sizes(1)]
    if VERSION >= (2, 12):
        allocator.attach_oom_rejection_observer()
    if VERSION >= (2, 13):
        allocator.mark_capture(0, 1)
        allocator.mark_capture(0, 0)
    return seen


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


# Checks of gpupool in PyTorch's place.


def check_place(ours):
    """What was there before goes back to where it came from, whatever is installed when it is freed."""
    native = Allocator(NATIVE)
    assert uninstall() is None
    assert install() is None
    assert install() is None
    before = ours.allocate(4096)
    assert uninstall() is None
    passing = ours.allocate(4096)
    raw_of_native = ours.raw_alloc(4096)
    assert native.device_stats(0)["allocation"]["all"]["current"] == 2
    assert ours.device_stats(0)["allocation"]["all"]["current"] == 3
    assert gpupool.memory_stats().live_blocks == 1
    ours.record_stream(before["block"], 1)
    ours.record_stream(passing["block"], 1)
    drop(before["block"])
    assert ours.device_stats(0)["allocation"]["all"]["current"] == 2
    assert install() is None
    raw = ours.raw_alloc(4096)
    assert uninstall() is None
    ours.raw_delete(raw)
    ours.raw_delete(raw_of_native)
    assert install() is None
    drop(passing["block"])
    assert native.device_stats(0)["allocation"]["all"]["current"] == 0
    assert ours.device_stats(0)["allocation"]["all"]["current"] == 0
    assert call("in_place")
    call("replace", 1)
    assert b"changed since" in install()
    call("replace", 0)
    assert install() is None


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
    assert live(ours)[0] == [(0, 0, 4096, False, *shown)]
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
    found = {entry[2]: entry[4:] for entry in live(ours)[0]}
    others = [part + (1 << 32) if part else 0 for part in inner.id]
    assert found == {4096: tuple(shown), 8192: tuple(shown), 600: tuple(others), 700: GRAPHS}, found
    ours.release_pool(0, *shown)
    ours.release_pool(0, *GRAPHS)
    assert ours.kind_of_error("begin_allocate_to_pool", 0, 0, (1 << 32) + 999, everything) == "RuntimeError"
    drop(block, inside, third, fourth)


def check_memory_of_before(ours):
    """What PyTorch's own allocator keeps is in statistics and snapshots, and given back when memory is short."""
    native = Allocator(NATIVE)
    assert uninstall() is None
    old, cached = ours.block(300 * MIB), ours.block(400 * MIB)
    drop(cached)
    assert install() is None
    new = ours.block(100 * MIB)
    stats = ours.device_stats(0)
    assert stats["requested_bytes"]["all"]["current"] == 400 * MIB
    assert stats["reserved_bytes"]["all"]["current"] >= 800 * MIB
    assert stats["requested_bytes"]["all"]["peak"] >= 700 * MIB
    assert [entry[2] for entry in live(ours)[0]] == [100 * MIB, 300 * MIB]
    # There are 1024 in all.
    more = ours.block(500 * MIB)
    assert native.device_stats(0)["reserved_bytes"]["all"]["current"] < 400 * MIB
    ours.reset_peak_stats(0)
    drop(more)
    assert ours.device_stats(0)["requested_bytes"]["all"]["current"] == 400 * MIB
    drop(old, new)
    ours.empty_cache(*NO_POOL)
    assert ours.device_stats(0)["reserved_bytes"]["all"]["current"] == 0


def check_sharing(ours):
    """Memory of gpupool's is not shared with other processes, and says so; that of before is."""
    native = Allocator(NATIVE)
    assert uninstall() is None
    old = ours.allocate(4096)
    assert install() is None
    new = ours.allocate(4096)
    assert ours.share_ipc_handle(old["address"]) > 0
    assert ours.get_ipc_dev_ptr(old["address"], NATIVE) == native.base_allocation(old["address"])["base"]
    assert ours.kind_of_error("share_ipc_handle", new["address"]) == "RuntimeError"
    assert "gpupool cannot share tensors" in ours.text_of_error("share_ipc_handle", new["address"])
    drop(old["block"], new["block"])


def check_other_streams(ours):
    """A stream of another device is refused, and nothing is lost by it."""
    block = ours.block(4096)
    kind = ours.kind_of_error("record_stream_of", block, 1, 1)
    assert kind in (None, "RuntimeError"), kind
    drop(block)
    ours.block(512)


def check_failing_trackers(ours):
    """What a tracker throws reaches the caller, and the block that it was told of is not lost."""
    ours.attach_tracker()
    call("let_trackers_throw", 1)
    assert ours.text_of_error("allocate", 4096) == "a tracker that fails"
    call("let_trackers_throw", 0)
    assert ours.device_stats(0)["allocation"]["all"]["current"] == 0
    drop(*ours.blocks(4096))


def check_same_numbers(ours):
    """gpupool's own statistics are PyTorch's."""
    blocks = ours.blocks(1000, 5 * MIB)
    own, stats = gpupool.memory_stats(), ours.device_stats(0)
    assert own.live_blocks == stats["allocation"]["all"]["current"] == 2
    assert own.live_bytes == stats["active_bytes"]["all"]["current"]
    assert own.reserved_bytes == stats["reserved_bytes"]["all"]["current"]
    drop(*blocks)


def check_given_addresses(ours):
    if VERSION >= (2, 13):
        assert "given address" in ours.text_of_error("allocate_with_address", 4096, 1 << 40)


def print_speed(ours):
    """Print the bytes, and what a pair costs with PyTorch's own allocator and with gpupool, in ns."""
    for size in (1024, MIB, 32 * MIB):
        pairs = [min(Allocator(which).time_pairs(size, 200000) for _ in range(5)) for which in (NATIVE, ours.which)]
        print(size, *(round(pair, 1) for pair in pairs))


def main(name):
    function = globals()[name]
    native, ours = Allocator(NATIVE), Allocator(OURS)
    native.set_up(2)
    if name.startswith("compare"):
        expected = json.loads(json.dumps(function(native)))
        call("drop_all")
        for pool in (POOL, (0, 2), GRAPHS):
            while native.kind_of_error("pool_use_count", 0, *pool) is None and native.pool_use_count(0, *pool):
                native.release_pool(0, *pool)
        native.record_history(0, 0, 1, NEVER, 1, "")
        native.empty_cache(*NO_POOL)
        for device in (0, 1):
            native.reset_accumulated_stats(device)
            native.reset_peak_stats(device)
        call("take_noted")
        assert (said := install()) is None, said
        got = json.loads(json.dumps(function(ours)))
        assert got == expected, f"\nPyTorch: {expected}\ngpupool: {got}"
    else:
        assert (said := install()) is None, said
        function(ours)


if __name__ == "__main__":
    main(sys.argv[3])
