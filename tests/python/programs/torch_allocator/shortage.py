"""Requests for more than there is. See torch_calls.py."""

import gpupool
from torch_calls import ALL, MIB, call, drop, main


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


def check_asleep(ours):
    """A request to memory that sleeps is PyTorch's plain error, with gpupool's text."""
    block = ours.block(100 * MIB)
    assert gpupool.sleep(0) >= 100 * MIB
    assert ours.kind_of_error("allocate", 4096) == "RuntimeError"
    text = ours.text_of_error("allocate", 4096)
    assert "is asleep and serves no request: wake it first, by gpupool.wake(0)" in text, text
    gpupool.wake(0)
    drop(block, ours.block(4096))


if __name__ == "__main__":
    main(globals())
