"""Blocks of PyTorch's that other processes use, by the handles that torch.multiprocessing sends. See torch_calls.py."""

import ctypes

import gpupool
from forking import in_child
from other_process import attached_bytes, other_process, shared_blocks
from torch_calls import MIB, NATIVE, OURS, Allocator, Failed, call, drop, install, main, uninstall
from waiting import wait_until


def set_word(address: int, word: int) -> None:
    ctypes.c_uint64.from_address(address).value = word


def word_at(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def begin(_kept: dict, is_enabled: bool = True) -> None:
    Allocator(NATIVE).set_up(2)
    if is_enabled:
        assert (said := install()) is None, said


def disable(_kept: dict) -> None:
    assert (said := uninstall()) is None, said


def receive(kept: dict, handle: str, name: str = "block") -> tuple[int, str]:
    """Return the address, or 0 and why there is none."""
    try:
        kept[name] = Allocator(OURS).receive(handle)
    except Failed as error:
        return 0, error.text
    return kept[name]["address"], ""


def read(kept: dict, offset: int, name: str = "block") -> int:
    return word_at(kept[name]["address"] + offset)


def write(kept: dict, offset: int, word: int, name: str = "block") -> None:
    set_word(kept[name]["address"] + offset, word)


def let_go(kept: dict, name: str = "block", how: str = "let_received_go") -> None:
    call(how, kept.pop(name)["number"])


def on_device(_kept: dict, device: int) -> None:
    call("set_device", device)


def wait_until_let_go() -> None:
    wait_until(lambda: shared_blocks() == [], "the other process has let go")


def check_words_both_ways(ours):
    """Blocks of any size are the same memory in both processes, and a pointer into one tells its offset."""
    blocks = [ours.allocate(nbytes) for nbytes in (512, 5000, 3 * MIB, 40 * MIB)]
    with other_process() as other:
        other.call(begin)
        for word, block in enumerate(blocks, 1):
            set_word(block["address"] + 256, word)
            shared = ours.share(block["address"])
            inside = ours.share(block["address"] + 256)
            assert (shared["offset"], inside["offset"]) == (0, 256)
            # PyTorch knows by the handle that it has a block already.
            assert inside["handle"] == shared["handle"]
            address, why = other.call(receive, shared["handle"])
            assert address, why
            assert other.call(read, 256) == word
            other.call(write, 264, word + 100)
            assert word_at(block["address"] + 264) == word + 100
            other.call(let_go)
        wait_until_let_go()
        assert other.call(attached_bytes) == 0


def check_a_freed_block_stays_while_it_is_received(ours):
    """Its memory is no other's until the receiver lets go, by whatever thread; then it is used again."""
    for how in ("let_received_go", "let_received_go_on_thread"):
        block = ours.allocate(700 * MIB)
        set_word(block["address"], 11)
        with other_process() as other:
            other.call(begin)
            assert other.call(receive, ours.share(block["address"])["handle"])[0]
            drop(block["block"])
            # There are 1024 in all.
            assert ours.kind_of_error("allocate", 700 * MIB) == "OutOfMemoryError"
            assert other.call(read, 0) == 11
            other.call(let_go, "block", how)
            wait_until_let_go()
            again = ours.block(700 * MIB)
            drop(again)


def check_forks(ours):
    """A worker that was forked drops what its parent has received without a word, and its parent keeps it."""
    block = ours.allocate(5000)
    set_word(block["address"], 5)
    with other_process() as other:
        other.call(begin)
        assert other.call(receive, ours.share(block["address"])["handle"])[0]
        other.call(let_go_in_child)
        assert other.call(read, 0) == 5
        other.call(let_go)
        wait_until_let_go()


def let_go_in_child(kept: dict) -> None:
    in_child(lambda: let_go(kept))


def check_the_same_block_twice(ours):
    """Each of two storages has the memory until it lets go."""
    block = ours.allocate(5000)
    set_word(block["address"], 5)
    handle = ours.share(block["address"])["handle"]
    with other_process() as other:
        other.call(begin)
        for name in ("first", "second"):
            assert other.call(receive, handle, name)[0]
        other.call(let_go, "first")
        assert other.call(read, 0, "second") == 5
        other.call(let_go, "second")
        wait_until_let_go()
        # And in the process that has it.
        own = ours.receive(handle)
        assert own["address"] == block["address"]
        call("let_received_go", own["number"])


def check_a_later_block_has_another_handle(ours):
    """What has a freed block's place is another block, which PyTorch must not take for the one that it has."""
    handles = set()
    for _ in range(3):
        block = ours.allocate(5000)
        handles.add(ours.share(block["address"])["handle"])
        drop(block["block"])
    assert len(handles) == 3
    with other_process() as other:
        other.call(begin)
        for handle in handles:
            address, why = other.call(receive, handle)
            assert (address, "was freed" in why) == (0, True), why


def check_another_device_receives(ours):
    """A block is received on the current device, which reaches the block's."""
    block = ours.allocate(3 * MIB)
    set_word(block["address"], 8)
    with other_process() as other:
        other.call(begin)
        other.call(on_device, 1)
        address, why = other.call(receive, ours.share(block["address"])["handle"])
        assert address, why
        assert other.call(read, 0) == 8
        other.call(let_go)
        wait_until_let_go()


def check_a_killed_receiver_holds_nothing(ours):
    """Nor does one that ends with the memory."""
    block = ours.allocate(5000)
    handle = ours.share(block["address"])["handle"]
    for end in ("kill", "leave"):
        with other_process() as other:
            other.call(begin)
            assert other.call(receive, handle)[0]
            assert len(shared_blocks()) == 1
            getattr(other, end)()
        wait_until_let_go()
    drop(block["block"])


def check_processes_without_gpupool(ours):
    """One that has not gpupool refuses at once; what is PyTorch's own goes the way it went."""
    native = Allocator(NATIVE)
    assert uninstall() is None
    old = ours.allocate(4096)
    assert install() is None
    new = ours.allocate(4096)
    handle = ours.share(old["address"])["handle"]
    assert handle == native.share(old["address"])["handle"]
    assert ours.get_ipc_dev_ptr(old["address"], NATIVE) == native.base_allocation(old["address"])["base"]
    with other_process() as other:
        other.call(begin, False)
        address, why = other.call(receive, ours.share(new["address"])["handle"])
        assert (address, "future version of torch" in why) == (0, True), why
    # Where gpupool was enabled it still receives.
    with other_process() as other:
        other.call(begin)
        other.call(disable)
        address, why = other.call(receive, ours.share(new["address"])["handle"])
        assert address, why
        other.call(let_go)
        wait_until_let_go()
    # Here too, tensors that are gpupool's are sent.
    assert uninstall() is None
    assert ours.share(new["address"])["offset"] == 0
    assert install() is None
    drop(old["block"], new["block"])


def check_tokens_that_are_none(ours):
    """What is no token of a block that is shared is refused by name, and so is a block of another version."""
    block = ours.allocate(5000)
    handle = ours.share(block["address"])["handle"]
    # The format follows the mark.
    newer = f"{handle[:8]}ff7f070809{handle[18:]}"
    assert "made by gpupool 7.8.9" in ours.text_of_error("receive", newer)
    assert "has 107" in ours.text_of_error("receive", handle[:-2])
    assert ours.kind_of_error("share", block["address"] + 40 * MIB) == "RuntimeError"
    assert gpupool.memory_stats().attached_bytes == 0
    drop(block["block"])


if __name__ == "__main__":
    main(globals())
