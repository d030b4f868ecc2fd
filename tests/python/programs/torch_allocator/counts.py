"""Statistics of a device, limits, and memory given back. See torch_calls.py."""

import gpupool
from torch_calls import MIB, NO_POOL, VERSION, counted, drop, main


def assert_reset(allocator, key, expected):
    """Check a number of each statistic of device 0 against another of the same statistic, or against a number."""
    for name, kinds in allocator.device_stats(0).items():
        for kind, stat in kinds.items() if isinstance(kinds, dict) and "all" in kinds else ():
            # What is reserved for small blocks turns into memory for large ones, and back.
            if name == "reserved_bytes" and kind != "all":
                continue
            assert stat[key] == stat.get(expected, expected), (name, kind, stat)


def compare_statistics(allocator):
    for device in (0, 1):
        allocator.reset_accumulated_stats(device)
        allocator.reset_peak_stats(device)
    seen = [counted(allocator)]
    # In between, up to a MiB, blocks are small in PyTorch and not here.
    blocks = allocator.blocks(1, 1000, 64 << 10, MIB + 1, 5 * MIB, 0)
    seen.append(counted(allocator))
    drop(blocks[1], blocks[4])
    seen.append(counted(allocator))
    allocator.reset_peak_stats(0)
    assert_reset(allocator, "peak", "current")
    seen.append(counted(allocator))
    allocator.reset_accumulated_stats(0)
    assert_reset(allocator, "allocated", 0)
    assert_reset(allocator, "freed", 0)
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


def compare_fraction(allocator):
    seen = [allocator.get_per_process_memory_fraction(0)]
    allocator.set_per_process_memory_fraction(0.25, 0)
    seen.append(allocator.get_per_process_memory_fraction(0))
    seen.append(allocator.get_per_process_memory_fraction(1))
    seen.append((allocator.kind_of_error("allocate", 300 * MIB), allocator.kind_of_error("allocate", 200 * MIB)))
    for fraction, device in ((1.5, 0), (-0.1, 0), (0.5, 2)):
        seen.append(allocator.kind_of_error("set_per_process_memory_fraction", fraction, device))
    seen.append(allocator.kind_of_error("get_per_process_memory_fraction", 2))
    allocator.set_per_process_memory_fraction(1.0, 0)
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


def compare_rest(allocator):
    seen = [allocator.initialized(), allocator.name(), allocator.expandable_segment_sizes(1)]
    if VERSION >= (2, 12):
        allocator.attach_oom_rejection_observer()
    if VERSION >= (2, 13):
        allocator.mark_capture(0, 1)
        allocator.mark_capture(0, 0)
    return seen


def check_same_numbers(ours):
    """Gpupool's own statistics are PyTorch's."""
    blocks = ours.blocks(1000, 5 * MIB)
    own, stats = gpupool.memory_stats(), ours.device_stats(0)
    assert own.live_blocks == stats["allocation"]["all"]["current"] == 2
    assert own.live_bytes == stats["active_bytes"]["all"]["current"]
    assert own.reserved_bytes == stats["reserved_bytes"]["all"]["current"]
    ours.set_per_process_memory_fraction(0.5, 0)
    assert gpupool.get_per_process_memory_fraction(0) == 0.5
    ours.set_per_process_memory_fraction(1.0, 0)
    drop(*blocks)


if __name__ == "__main__":
    main(globals())
