"""Blocks: where they lie, whose they are, and what cannot be freed. See torch_calls.py."""

import ctypes

from forking import in_child
from torch_calls import MIB, NO_POOL, VERSION, call, counted, drop, main, set_pending


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


def compare_giving_back_what_the_gpu_is_at_work_on(allocator):
    block, other = allocator.blocks(32 * MIB, 4096)
    set_pending(True)
    drop(block)
    allocator.empty_cache(*NO_POOL)
    seen = [allocator.device_stats(0)["reserved_bytes"]["all"]["current"] < 32 * MIB]
    drop(other)
    allocator.empty_cache(*NO_POOL)
    seen.append(allocator.device_stats(0)["reserved_bytes"]["all"]["current"])
    set_pending(False)
    return seen


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
    # PyTorch asks for events at every request, gpupool when it matters.
    allocator.empty_cache(*NO_POOL)
    seen.append(counted(allocator)["active"]["all"]["current"])
    # The same stream again says nothing; neither does a block without memory, or one of another's.
    allocator.record_stream(third, 0)
    empty = allocator.block(0)
    allocator.record_stream(empty, 1)
    drop(other["block"], third, empty)
    allocator.block(512)
    allocator.empty_cache(*NO_POOL)
    seen.append(counted(allocator)["active"]["all"]["current"])
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


def compare_threads(allocator):
    failures = allocator.turn_over(8, 500)
    return failures, allocator.device_stats(0)["allocation"]["all"]["current"]


def check_other_streams(ours):
    """A stream of another device is refused, and nothing is lost by it."""
    block = ours.block(4096)
    kind = ours.kind_of_error("record_stream_of", block, 1, 1)
    assert kind in (None, "RuntimeError"), kind
    drop(block)
    ours.block(512)


def compare_given_addresses(allocator):
    """A tensor that was freed is allocated again at its address, and what is live, or was never there, is refused."""
    if VERSION < (2, 13):
        return None
    seen = []
    for size in [512, 4096, 300 << 10, 3 * MIB, 30 * MIB]:
        block = allocator.allocate(size)
        seen.append(allocator.kind_of_error("allocate_with_address", size, block["address"]))
        drop(block["block"])
        seen.append(allocator.allocate_with_address(size, block["address"]))
        again = allocator.allocate(size)
        seen.append(again["address"] == block["address"])
        drop(again["block"])
    whole = allocator.allocate(30 * MIB)
    drop(whole["block"])
    seen.append(allocator.allocate_with_address(4 * MIB, whole["address"] + 8 * MIB))
    seen.append(allocator.kind_of_error("allocate_with_address", 4096, 1 << 40))
    return seen, counted(allocator)["requested_bytes"]["all"]["current"]


def check_forks(ours):
    """A worker that was forked drops what it inherited without a word, and is told what it may not do."""
    held, raw = ours.block(MIB), ours.raw_alloc(MIB)

    def child():
        assert "spawn" in ours.text_of_error("allocate", MIB)
        assert "spawn" in ours.text_of_error("raw_delete", raw)
        drop(held)

    in_child(child)
    drop(held)
    ours.raw_delete(raw)


def check_errors_of_given_addresses(ours):
    if VERSION >= (2, 13):
        block = ours.allocate(4096)
        text = ours.text_of_error("allocate_with_address", 4096, block["address"])
        assert "exact address" in text
        assert "not free there" in text
        drop(block["block"])


if __name__ == "__main__":
    main(globals())
