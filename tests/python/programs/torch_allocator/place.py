"""gpupool in PyTorch's place, and what was there before. See torch_calls.py."""

import gpupool
from torch_calls import MIB, NATIVE, NO_POOL, Allocator, call, drop, install, live, main, uninstall


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


if __name__ == "__main__":
    main(globals())
