"""gpupool in the place of PyTorch's allocator of pinned memory, and what was there before. See torch_calls.py."""

import double
import gpupool
from double import driver
from forking import in_child
from torch_calls import (
    GRAPHS,
    MIB,
    NATIVE,
    VERSION,
    Allocator,
    call,
    drop,
    install,
    install_pinned,
    main,
    set_pending,
    uninstall_pinned,
)
from waiting import wait_until

KEYS = {
    *("active_requests", "active_bytes", "allocations", "allocated_bytes"),
    *("host_alloc_time", "host_free_time", "num_host_alloc", "num_host_free", "bucket_allocation"),
}


def block(allocator, nbytes):
    return allocator.pinned_allocate(nbytes)["block"]


def live():
    return gpupool.pinned_stats().live_blocks


def record(allocator, block, offset=0, with_context=1, stream=1, device=0):
    return allocator.pinned_record(block, offset, with_context, stream, device)


def compare_blocks(allocator):
    seen = []
    for nbytes in (0, 1, 512, 5000, 3 * MIB, 40 * MIB):
        made = allocator.pinned_allocate(nbytes)
        assert made["address"] % 512 == 0
        seen.append((nbytes, bool(made["address"]), made["is_of_cpu"]))
        drop(made["block"])
    return seen


def compare_what_is_recorded(allocator):
    """PyTorch takes the answer for whether it knows the memory."""
    made = allocator.pinned_allocate(3 * MIB)
    held, address = made["block"], made["address"]
    seen = [
        record(allocator, held),
        record(allocator, held, device=1),
        record(allocator, held, stream=0),
        # A slice, and a tensor that other code made of the memory.
        record(allocator, held, offset=MIB),
        record(allocator, held, with_context=0),
        record(allocator, held, offset=MIB, with_context=0),
        allocator.pinned_record_address(1 << 40, 1 << 40, 1),
        allocator.pinned_record_address(0, 0, 1),
    ]
    drop(held)
    allocator.pinned_empty_cache()
    seen.append(allocator.pinned_record_address(address, 0, 1))
    return seen


def compare_what_is_used_again(allocator):
    seen = []
    # Recorded on no stream, at once.
    first = allocator.pinned_allocate(MIB)
    drop(first["block"])
    second = allocator.pinned_allocate(MIB)
    seen.append(second["address"] == first["address"])
    # Only after the work of the streams that it was recorded on.
    record(allocator, second["block"])
    record(allocator, second["block"], device=1)
    set_pending(True)
    drop(second["block"])
    others = [allocator.pinned_allocate(MIB) for _ in range(3)]
    seen.append(second["address"] in [other["address"] for other in others])
    set_pending(False)
    last = allocator.pinned_allocate(MIB)
    seen.append(last["address"] == second["address"])
    drop(last["block"], *(other["block"] for other in others))
    return seen


def compare_what_is_counted(allocator):
    before = allocator.pinned_stats()
    blocks = [block(allocator, nbytes) for nbytes in (4096, MIB, 2 * MIB)]
    stats = allocator.pinned_stats()
    assert set(stats) == KEYS
    assert stats["num_host_alloc"] == stats["allocations"]["allocated"] == stats["host_alloc_time"]["count"] > 0
    assert stats["num_host_free"] == stats["host_free_time"]["count"]
    assert stats["allocated_bytes"]["current"] >= stats["active_bytes"]["current"]
    times = stats["host_alloc_time"]
    assert 0 <= times["min"] <= times["max"] <= times["total"]
    names = ("active_requests", "active_bytes")
    seen = [stats[name][key] - before[name][key] for name in names for key in ("current", "allocated", "freed")]
    drop(*blocks)
    return seen


def compare_graphs_that_end_without_a_beginning(allocator):
    seen = []
    allocator.pinned_begin(*GRAPHS, 1)
    seen.append(allocator.text_of_error("pinned_begin", *GRAPHS, 1).split(" (")[0])
    allocator.pinned_end(*GRAPHS)
    seen.append(allocator.text_of_error("pinned_end", *GRAPHS))
    allocator.pinned_release(*GRAPHS)
    return seen


def check_the_rest_of_the_interface(ours):
    made = ours.pinned_allocate(4096)
    assert made["is_simple"]
    assert made["has_raw_deleter"]
    assert ours.pinned_copy_data(made["block"], 4096)
    drop(made["block"])
    assert live() == 0


def check_history(ours):
    """It is of gpupool's blocks, and of what other code pinned, which PyTorch's own allocator is told."""
    if VERSION < (2, 14):
        return
    assert not ours.pinned_is_history_enabled()
    ours.pinned_record_history(1)
    assert ours.pinned_is_history_enabled()
    held = ours.pinned_allocate(MIB)
    record(ours, held["block"])
    ours.pinned_external(1 << 20, 4096)
    segments = {segment["address"]: segment for segment in ours.pinned_segments()}
    assert (1 << 20) in segments
    found = segments[held["address"]]
    assert (found["bytes"], found["allocated"], found["active"]) == (MIB, True, True)
    ours.pinned_external(1 << 20, 0)
    set_pending(True)
    drop(held["block"])
    found = {segment["address"]: segment for segment in ours.pinned_segments()}[held["address"]]
    assert (found["allocated"], found["active"]) == (False, True)
    set_pending(False)
    gpupool.empty_cache()

    def actions(address):
        traces = ours.pinned_traces()
        assert [entry["time"] for entry in traces] == sorted(entry["time"] for entry in traces)
        return [entry["action"] for entry in traces if entry["address"] == address and entry["bytes"] <= MIB]

    assert actions(held["address"]) == ["alloc", "free_requested", "free_completed"]
    assert actions(1 << 20) == ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    ours.pinned_record_history(0)
    assert not ours.pinned_is_history_enabled()
    assert not actions(held["address"])

    # With the stacks that the allocator of devices' memory takes.
    assert install() is None
    call("set_doing", "the first")
    ours.record()
    ours.pinned_record_history(1)
    held = ours.pinned_allocate(MIB)
    found = {segment["address"]: segment for segment in ours.pinned_segments()}[held["address"]]
    assert found["context"] == "the first"
    seen = [
        (entry["action"], entry["context"]) for entry in ours.pinned_traces() if entry["address"] == held["address"]
    ]
    assert ("alloc", "the first") in seen, seen
    assert not [event for event in ours.events("address") if held["address"] in event], "it is among devices' events"
    drop(held["block"])
    ours.record_history(0, 0, 1, 0, 1, "")
    ours.pinned_record_history(0)


def check_place(ours):
    """What was there before goes back to where it came from, whatever is installed when it is recorded and freed."""
    native = Allocator(NATIVE)
    assert call("pinned_in_place")
    assert install_pinned() is None
    old = block(native, MIB)
    for _ in range(2):
        new = block(ours, MIB)
        assert live() == 1
        assert uninstall_pinned() is None
        passing = ours.pinned_allocate(MIB)
        assert live() == 1
        assert not passing["is_simple"], "gpupool serves still"
        # Blocks that are left wait for what is recorded now.
        assert record(ours, new)
        assert record(ours, passing["block"])
        assert record(ours, old)
        set_pending(True)
        drop(new, passing["block"])
        assert live() == 1, "a stream's block is free before the stream is done"
        assert install_pinned() is None
        assert record(ours, old)
        set_pending(False)
        gpupool.empty_cache()
        assert live() == 0
    drop(old)
    assert native.pinned_stats()["allocations"]["current"] > 0, "PyTorch's own allocator did not get its memory back"
    ours.pinned_empty_cache()
    assert native.pinned_stats()["allocations"]["current"] == 0
    wait_until(lambda: gpupool.pinned_stats().reserved_bytes == 0, "gpupool's memory is given back too")


def check_others(ours):
    """Another library's allocator keeps the place."""
    call("pinned_replace", 1, 0)
    assert b"changed since" in install_pinned()
    call("pinned_replace", 0, 0)
    assert install_pinned() is None
    call("pinned_prefer_first", 7)
    assert b"with a priority" in install_pinned()
    assert not call("pinned_in_place")


def check_statistics(ours):
    """They are of both allocators, and gpupool's are those of gpupool's own."""
    native = Allocator(NATIVE)
    assert uninstall_pinned() is None
    old = block(ours, 4 * MIB)
    assert install_pinned() is None
    before = ours.pinned_stats()
    assert set(before) == KEYS
    new = [block(ours, MIB), block(ours, 300 * MIB)]
    stats, own = ours.pinned_stats(), gpupool.pinned_stats()
    assert stats["active_requests"]["current"] == 1 + own.live_blocks == 3
    assert stats["active_bytes"]["current"] == 4 * MIB + own.live_bytes
    assert stats["allocated_bytes"]["current"] == 4 * MIB + own.reserved_bytes
    assert stats["active_bytes"]["peak"] == stats["active_bytes"]["current"]
    made = stats["num_host_alloc"]
    assert made == stats["host_alloc_time"]["count"] == stats["allocations"]["allocated"] > before["num_host_alloc"]
    assert stats["host_alloc_time"]["max"] >= 7
    assert 0 <= stats["host_alloc_time"]["min"] <= 7, "PyTorch's own allocator took 7"
    assert stats["host_alloc_time"]["total"] > before["host_alloc_time"]["total"]
    assert stats["bucket_allocation"] == native.pinned_stats()["bucket_allocation"]
    drop(*new)
    ours.pinned_empty_cache()
    wait_until(lambda: gpupool.pinned_stats().reserved_bytes == 0, "all of it is given back")
    wait_until(lambda: ours.pinned_stats()["host_free_time"]["count"] == made - 1, "and counted")
    after = ours.pinned_stats()
    assert after["num_host_free"] == made - 1
    assert after["active_requests"]["current"] == 1
    assert after["active_requests"]["peak"] == 3

    ours.pinned_reset_peak_stats()
    reset = ours.pinned_stats()
    for name in ("active_requests", "active_bytes", "allocations", "allocated_bytes"):
        assert reset[name] == {**after[name], "peak": after[name]["current"]}, name
    assert [reset["host_alloc_time"][key] for key in ("min", "max")] == [0, 0]
    assert reset["host_alloc_time"]["total"] == after["host_alloc_time"]["total"]
    ours.pinned_reset_accumulated_stats()
    reset = ours.pinned_stats()
    assert (reset["num_host_alloc"], reset["num_host_free"]) == (0, 0)
    for name in ("active_requests", "active_bytes", "allocations", "allocated_bytes"):
        assert (reset[name]["allocated"], reset[name]["freed"]) == (0, 0), name
        assert reset[name]["current"] == after[name]["current"], name
    for name in ("host_alloc_time", "host_free_time"):
        assert (reset[name]["total"], reset[name]["count"]) == (0, 0), name
    drop(block(ours, MIB), old)
    assert ours.pinned_stats()["num_host_alloc"] == 1


def check_captures(ours):
    """What is allocated while a stream is captured is the graph's until that is gone."""
    stream = call("stream_handle", 1)
    other = ours.pinned_allocate(32 * MIB)
    call("number_of_filters_asked")
    ours.pinned_begin(*GRAPHS, 1)
    double.set_capture(stream, 1)
    drop(other["block"])
    outside = ours.pinned_allocate(32 * MIB)
    assert outside["address"] == other["address"], "a stream that is not captured has a graph's memory"
    call("set_stream", 1)
    inside = [ours.pinned_allocate(nbytes) for nbytes in (4096, 32 * MIB)]
    call("set_stream", 0)
    assert call("number_of_filters_asked") == 3
    assert double.is_capturing(stream), "the capture is spoilt"
    double.set_capture(stream, 0)
    ours.pinned_end(*GRAPHS)
    addresses = {made["address"] for made in inside}
    drop(*(made["block"] for made in inside))

    others = [ours.pinned_allocate(nbytes) for nbytes in (4096, 32 * MIB)]
    assert not addresses & {made["address"] for made in others}, "a graph's memory was handed out again"
    driver.double_destroy_graph(1)
    again = [ours.pinned_allocate(nbytes) for nbytes in (4096, 32 * MIB)]
    assert again[1]["address"] in addresses, "memory of a graph that is gone is lost"
    drop(*(made["block"] for made in (*others, *again)))
    assert call("number_of_filters_asked") == 0, "a capture that has ended is asked about"
    ours.pinned_release(*GRAPHS)
    drop(outside["block"])

    # A copy in a capture, of memory from before it.
    made = ours.pinned_allocate(16 * MIB)
    ours.pinned_begin(2, 0, 1)
    double.set_capture(stream, 1)
    assert record(ours, made["block"])
    drop(made["block"])
    double.set_capture(stream, 0)
    ours.pinned_end(2, 0)
    again = ours.pinned_allocate(16 * MIB)
    assert again["address"] != made["address"], "a graph's memory was handed out again"
    driver.double_destroy_graph(2)
    ours.pinned_release(2, 0)
    drop(again["block"])

    # What is asked fails.
    ours.pinned_begin(3, 0, -1 & (2**32 - 1))
    assert ours.kind_of_error("pinned_allocate", 4096) == "RuntimeError"
    assert "a filter that fails" in ours.text_of_error("pinned_allocate", 4096)
    # A capture may begin with one allocator in the place and end with the other.
    assert uninstall_pinned() is None
    assert ours.kind_of_error("pinned_allocate", 4096) == "RuntimeError"
    ours.pinned_end(3, 0)
    ours.pinned_release(3, 0)
    assert install_pinned() is None
    drop(block(ours, 4096))
    gpupool.empty_cache()
    assert live() == 0


def check_threads(ours):
    assert ours.pinned_turn_over(4, 3000) == 0
    gpupool.empty_cache()
    assert live() == 0


def check_a_lack_of_memory(ours):
    """PyTorch's own allocator gives back what it keeps, and then the error says what holds the memory."""
    native = Allocator(NATIVE)
    assert uninstall_pinned() is None
    drop(block(ours, 4 * MIB))
    assert install_pinned() is None
    kept = block(ours, MIB)
    gpupool.set_pinned_limit(gpupool.pinned_stats().reserved_bytes)
    assert native.pinned_stats()["allocations"]["current"] == 1
    assert ours.kind_of_error("pinned_allocate", 1 << 30) == "OutOfMemoryError"
    assert native.pinned_stats()["allocations"]["current"] == 0
    text = ours.text_of_error("pinned_allocate", 1 << 30)
    assert "pinned memory" in text
    assert "set_pinned_limit" in text
    assert ours.kind_of_error("pinned_allocate", 1 << 62) == "OutOfMemoryError"
    gpupool.set_pinned_limit(None)
    drop(block(ours, 64 * MIB), kept)


def check_a_refusal_of_the_driver(ours):
    """Nothing is thrown out of a destructor, and nothing is used too early."""
    held = ours.pinned_allocate(MIB)
    assert record(ours, held["block"])
    double.fail("cuEventRecord=1")
    drop(held["block"])
    double.fail()
    gpupool.empty_cache()
    drop(block(ours, MIB))
    assert live() == 0


def check_forks(ours):
    """A worker that was forked drops what it inherited without a word, and is told what it may not do."""
    held = block(ours, MIB)

    def child():
        assert "spawn" in ours.text_of_error("pinned_allocate", 4096)
        assert "spawn" in ours.text_of_error("pinned_record", held, 0, 1, 0, 0)
        drop(held)

    in_child(child)
    assert live() == 1
    drop(held)
    assert live() == 0


if __name__ == "__main__":
    main(globals(), install_pinned)
