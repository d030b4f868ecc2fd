"""What a process let go stays mapped there for the next time, and never keeps memory that its owner gives back."""

import contextlib
import logging
import os
import resource
import signal
from pathlib import Path

import gpupool
from errors import assert_says, raised
from forking import assert_refused, in_child
from gpupool import _native
from other_process import (
    MIB,
    OtherProcess,
    attach,
    attached_bytes,
    content,
    fill,
    fork_one_that_stays,
    free,
    in_pieces,
    logged,
    open_files,
    other_process,
    read_by,
    shared_blocks,
    stopped,
    values,
    wait_until_let_go,
    watched_processes,
)
from waiting import wait_until

# What maps a block. One that fails tells that it was called.
OF_MAPPING = ("AddressReserve", "ExtentImport", "MemoryMap", "MemorySetAccess")
PIECES = 9
MANY = 1100
# As many regions stay mapped as src/memory/share/mapping_cache.rs says.
IDLE_MOST = 1024


def files_of_memory(process: int | str) -> dict[tuple[str, str], int]:
    """Return the files with simulated memory that a process has mapped, and how often."""
    found: dict[tuple[str, str], int] = {}
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        if "/memfd:gpupool (" in line:
            _addresses, _rights, _offset, device, node, *_name = line.split()
            found[device, node] = found.get((device, node), 0) + 1
    return found


def mappings(owner: int | str, process: int | str) -> int:
    """Return how many pieces of an owner's memory a process has mapped."""
    own = files_of_memory(owner)
    return sum(count for file, count in files_of_memory(process).items() if file in own)


def attach_and_let_go(other: OtherProcess, token: gpupool.typing.ShareToken, device: int | None = None) -> int:
    other.put("buffer", gpupool.attach, token, None, device)
    address = other.of("buffer", "ptr")
    other.call(free)
    wait_until_let_go(other)
    return address


def refuse_to_map() -> None:
    for call in OF_MAPPING:
        _native.host_inject(call)


def needs_a_mapping(other: OtherProcess, token: gpupool.typing.ShareToken) -> bool:
    """Return whether attaching maps anything; the buffer stays attached where it does not."""
    other.do(refuse_to_map)
    try:
        other.call(attach, token)
    except AssertionError as error:
        if "HOST_ERROR_INJECTED" not in str(error):
            raise
        return True
    finally:
        other.do(_native.host_clear_faults)
    return False


def it_is_attached_again_without_a_mapping() -> None:
    buffer = in_pieces(1)
    with other_process() as other:
        first = attach_and_let_go(other, buffer.share())
        for byte in (2, 3):
            buffer.fill(byte)
            assert not needs_a_mapping(other, buffer.share())
            assert other.call(content) == {byte}
            assert other.call(attached_bytes) == buffer.nbytes
            assert shared_blocks()[0][3] == (other.process.pid,)
            other.call(fill, 9)
            assert values(buffer) == {9}
            other.call(free)
            wait_until_let_go(other)
        # Twice at a time it is one mapping too.
        assert other.call(attach, buffer.share(), "first") == first == other.call(attach, buffer.share(), "second")
        other.call(free, "first")
        other.call(free, "second")
        wait_until_let_go(other)
        # Its own call ends it, and then it takes a mapping.
        assert mappings("self", other.process.pid) > 0
        other.do(gpupool.empty_cache)
        assert mappings("self", other.process.pid) == 0
        assert needs_a_mapping(other, buffer.share())


def the_owner_uses_the_memory_at_once() -> None:
    # More than half of the device.
    large = 40 * MIB
    buffer = gpupool.empty(large)
    buffer.fill(1)
    with other_process() as other:
        attach_and_let_go(other, buffer.share())
        with stopped(other.process.pid):
            address = buffer.ptr
            buffer.free()
            same = gpupool.empty(large)
            assert same.ptr == address
            same.fill(2)
        # Another buffer in the same memory.
        assert not needs_a_mapping(other, same.share())
        assert other.call(content) == {2}


def a_new_buffer_where_one_was_needs_no_mapping() -> None:
    with other_process() as other:
        buffer = in_pieces(1)
        token = buffer.share()
        address = attach_and_let_go(other, token)
        for byte in (2, 3, 4):
            place, nbytes = buffer.ptr, buffer.nbytes
            buffer.free()
            buffer = gpupool.empty(nbytes)
            buffer.fill(byte)
            assert buffer.ptr == place
            # That of before is gone, though its memory is mapped.
            other.refused(gpupool.InvalidValue, attach, token)
            token = buffer.share()
            assert not needs_a_mapping(other, token)
            assert other.of("buffer", "ptr") == address
            assert other.call(content) == {byte}
            other.call(fill, 9)
            assert values(buffer) == {9}
            other.call(free)
            wait_until_let_go(other)
        # A shorter one begins there, and lies in fewer extents.
        buffer.free()
        shorter = gpupool.empty(2 * MIB)
        assert needs_a_mapping(other, shorter.share())


def two_buffers_in_one_extent_have_one_mapping() -> None:
    one, two, three = (gpupool.empty(1000) for _ in range(3))
    for byte, buffer in enumerate((one, two, three)):
        buffer.fill(byte)
    with other_process() as other:
        first = other.call(attach, one.share(), "one")
        other.do(refuse_to_map)
        second = other.call(attach, two.share(), "two")
        other.do(_native.host_clear_faults)
        assert second - first == two.ptr - one.ptr
        assert mappings("self", other.process.pid) == 1
        assert other.call(attached_bytes) == one.nbytes + two.nbytes
        assert {block[0] for block in shared_blocks()} == {one.ptr, two.ptr}
        # Each is held, and let go, by itself.
        other.call(free, "one")
        wait_until(lambda: [block[0] for block in shared_blocks()] == [two.ptr], "one is let go")
        # It counts one block less once it has told so.
        wait_until(lambda: other.call(attached_bytes) == two.nbytes, "it is let go there, too")
        one.free()
        gpupool.empty_cache()
        assert other.call(content, "two") == {1}
        other.do(refuse_to_map)
        assert other.call(attach, three.share(), "three") - second == three.ptr - two.ptr
        other.do(_native.host_clear_faults)
        other.call(free, "two")
        other.call(free, "three")
        wait_until_let_go(other)
        assert mappings("self", other.process.pid) == 1
        assert not needs_a_mapping(other, two.share())
        assert other.call(content) == {1}


def an_extents_number_that_comes_again_is_another_extent() -> None:
    _native.host_reuse_extent_numbers()
    with other_process() as other:
        for is_heard in (True, False):
            buffer = in_pieces(1)
            attach_and_let_go(other, buffer.share())
            attach_and_let_go(other, buffer.share())
            place = buffer.ptr
            with contextlib.nullcontext() if is_heard else stopped(other.process.pid):
                buffer.free()
                gpupool.empty_cache()
                same = in_pieces(2)
                assert same.ptr == place
                # The addresses are others', in the simulated memory as on a GPU.
                apart = in_pieces(3)
            assert needs_a_mapping(other, same.share())
            for byte, new in ((2, same), (3, apart)):
                assert read_by(other, new.share()) == {byte}
                wait_until_let_go(other)
            same.free()
            apart.free()
            gpupool.empty_cache()
            wait_until(lambda: mappings("self", other.process.pid) == 0, "nothing is mapped")


def what_is_given_back_is_unmapped() -> None:
    with other_process() as other:
        for give_back in (gpupool.empty_cache, run_out_of_memory):
            buffer, stays = in_pieces(1), in_pieces(2)
            attach_and_let_go(other, stays.share())
            before = mappings("self", other.process.pid)
            attach_and_let_go(other, buffer.share())
            both = mappings("self", other.process.pid)
            assert both > before
            buffer.free()
            assert mappings("self", other.process.pid) == both
            give_back()
            # It was waited for.
            assert mappings("self", other.process.pid) == before
            # The other one stays.
            assert not needs_a_mapping(other, stays.share())
            assert other.call(content) == {2}
            other.call(free)
            wait_until_let_go(other)
            stays.free()
            gpupool.empty_cache()
            assert mappings("self", other.process.pid) == 0


def what_lacks_memory_waits_for_other_processes() -> None:
    """What each waits for in vain it logs, of a process that is stopped."""
    messages = logged("gpupool", logging.INFO)
    asleep = gpupool.MemPool()
    # With what is shared it is more than the device has.
    with gpupool.use_mem_pool(asleep):
        large = gpupool.empty(50 * MIB)
    asleep.sleep(backup=None)
    held = gpupool.empty(2 * MIB)
    with other_process() as other:
        for lack in (run_out_of_memory, reserve_too_much, asleep.wake):
            buffer = in_pieces(1)
            attach_and_let_go(other, buffer.share())
            with stopped(other.process.pid):
                buffer.free()
                messages.clear()
                lack()
                wait_until(lambda: any("other processes still have" in each for each in messages), f"{lack} has waited")
            wait_until(lambda: mappings("self", other.process.pid) == 0, "it has heard all")
    assert large.nbytes == asleep.stats().live_bytes
    held.free()


def reserve_too_much() -> None:
    raised(gpupool.OutOfMemory, lambda: gpupool.MemPool(reserve=64 * MIB))


def run_out_of_memory() -> None:
    # As much as the device has, of which some is in use.
    raised(gpupool.OutOfMemory, lambda: gpupool.empty(64 * MIB))


def what_a_pool_had_is_unmapped_as_it_ends() -> None:
    pool, buffer = pool_of(1)
    with other_process() as other:
        attach_and_let_go(other, buffer.share())
        buffer.free()
        pool.close()
        wait_until(lambda: mappings("self", other.process.pid) == 0, "nothing is mapped")


def what_the_owner_cannot_release_is_another_region() -> None:
    _native.host_reuse_extent_numbers()
    with other_process() as other:
        for after in range(PIECES + 1):
            buffer = in_pieces(1)
            attach_and_let_go(other, buffer.share())
            buffer.free()
            _native.host_inject("ExtentRelease", "other", after)
            with contextlib.suppress(gpupool.Error):
                gpupool.empty_cache()
            _native.host_clear_faults()
            new = in_pieces(2)
            assert read_by(other, new.share()) == {2}
            wait_until_let_go(other)
            new.free()
            gpupool.empty_cache()
            assert mappings("self", other.process.pid) == 0


def freed_while_it_is_attached() -> None:
    with other_process() as other:
        buffer = in_pieces(1)
        other.call(attach, buffer.share())
        buffer.free()
        gpupool.empty_cache()
        assert other.call(content) == {1}
        other.call(free)
        wait_until(lambda: shared_blocks() == [], "it is let go")
        gpupool.empty_cache()
        assert mappings("self", other.process.pid) == 0


def pool_of(byte: int) -> tuple[gpupool.MemPool, gpupool.DeviceBuffer]:
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        buffer = in_pieces(byte)
    return pool, buffer


def a_pool_that_sleeps_has_its_memory_back() -> None:
    pool, buffer = pool_of(3)
    apart = in_pieces(4)
    with other_process() as other:
        attach_and_let_go(other, apart.share())
        before = mappings("self", other.process.pid)
        token = buffer.share()
        attach_and_let_go(other, token)
        pool.sleep()
        assert mappings("self", other.process.pid) == before
        other.refused(gpupool.Unavailable, attach, token)
        pool.wake()
        # Other memory: what was mapped is not used.
        assert needs_a_mapping(other, token)
        other.call(attach, token)
        assert other.call(content) == {3}
        # That of other pools stays.
        other.call(free)
        assert not needs_a_mapping(other, apart.share())


def what_sleeps_and_wakes_unheard_is_not_used() -> None:
    pool, buffer = pool_of(3)
    with other_process() as other:
        token = buffer.share()
        attach_and_let_go(other, token)
        with stopped(other.process.pid):
            pool.sleep()
            # The addresses are others', in the simulated memory as on a GPU.
            with gpupool.use_mem_pool(gpupool.MemPool()):
                taken = in_pieces(9)
            pool.wake()
            assert values(taken) == {9}
        other.call(attach, token)
        assert other.call(content) == {3}
        other.call(fill, 5)
        assert values(buffer) == {5}
        assert values(taken) == {9}


def sleep_that_is_refused_leaves_it() -> None:
    pool, buffer = pool_of(3)
    with other_process() as other, other_process() as third:
        attach_and_let_go(other, buffer.share())
        third.call(attach, buffer.share())
        raised(gpupool.Unavailable, pool.sleep)
        assert not needs_a_mapping(other, buffer.share())
        assert other.call(content) == {3}


def each_in_a_pool(count: int) -> tuple[list[gpupool.MemPool], list[gpupool.DeviceBuffer]]:
    """Return buffers of which each is alone in its extent."""
    pools = [gpupool.MemPool() for _ in range(count)]
    return pools, [pool.empty(1000) for pool in pools]


def a_stopped_process_holds_up_no_other() -> None:
    pool, asleep = pool_of(1)
    pools, buffers = each_in_a_pool(MANY // 2)
    with other_process() as other:
        other.call(attach_all, [buffer.share() for buffer in buffers])
        other.call(free_all)
        attach_and_let_go(other, asleep.share())
        with stopped(other.process.pid):
            # More news than a socket has room for.
            for buffer, of_buffer in zip(buffers, pools, strict=True):
                buffer.free()
                of_buffer.close()
            gpupool.empty_cache()
            gpupool.empty_cache()
            pool.sleep()
            raised(gpupool.OutOfMemory, lambda: gpupool.empty(1 << 40))
            with other_process() as third:
                pool.wake()
                third.call(attach, asleep.share())
                assert third.call(content) == {1}
        wait_until(lambda: mappings("self", other.process.pid) == 0, "it has heard all")


def attach_all(kept: dict, tokens: list) -> None:
    kept["all"] = [gpupool.attach(token) for token in tokens]


def free_all(kept: dict) -> None:
    for buffer in kept.pop("all"):
        buffer.free()


def an_owner_that_ends_leaves_nothing() -> None:
    for end in (OtherProcess.leave, OtherProcess.kill):
        with other_process() as owner:
            owner.put("own", in_pieces, 7)
            token = owner.of("own", "share")
            child = owner.call(fork_one_that_stays) if end is OtherProcess.kill else 0
            buffer = gpupool.attach(token)
            assert values(buffer) == {7}
            buffer.free()
            wait_until(lambda: gpupool.memory_stats().attached_bytes == 0, "it is let go")
            memory = set(files_of_memory(owner.process.pid))
            assert memory & set(files_of_memory("self"))
            end(owner)
            wait_until(
                lambda memory=memory: not memory & set(files_of_memory("self")), "nothing of a dead owner is mapped"
            )
            wait_until(lambda: watched_processes() == 0, "its connection is closed")
            if child:
                os.kill(child, signal.SIGKILL)


def a_process_that_is_killed_is_not_waited_for() -> None:
    pool, buffer = pool_of(1)
    with other_process() as other:
        attach_and_let_go(other, buffer.share())
        child = other.call(fork_one_that_stays)
        assert watched_processes() > 0
        other.kill()
        # Its child has the connection, and is not the process: that one is closed.
        wait_until(lambda: watched_processes() == 0, "the connection is closed")
        pool.sleep()
        pool.wake()
        os.kill(child, signal.SIGKILL)
    with other_process() as third:
        third.call(attach, buffer.share())
        assert third.call(content) == {1}


def a_forked_child_leaves_it_alone() -> None:
    buffer = in_pieces(1)
    with other_process() as other:
        attach_and_let_go(other, buffer.share())
        other.do(fork_and_try, buffer.share())
        assert not needs_a_mapping(other, buffer.share())
        assert other.call(content) == {1}


def fork_and_try(token: gpupool.typing.ShareToken) -> None:
    in_child(lambda: assert_refused(lambda: gpupool.attach(token), gpupool.empty_cache))


def the_oldest_go_first() -> None:
    _pools, buffers = each_in_a_pool(MANY)
    tokens = [buffer.share() for buffer in buffers]
    with other_process() as other:
        for token in tokens:
            other.call(attach, token)
            other.call(free)
        wait_until_let_go(other)
        wait_until(lambda: mappings("self", other.process.pid) == IDLE_MOST, "the most that stay are mapped")
        assert not needs_a_mapping(other, tokens[-1])
        assert needs_a_mapping(other, tokens[0])


def a_process_without_room_for_files_attaches() -> None:
    buffer = gpupool.empty(1000)
    buffer.fill(1)
    with other_process() as other:
        # One for the connection that asks and two for the extent, of which one is left: too few for
        # one that listens and what tells of the owner's end.
        other.call(attach_with_few_files, buffer.share(), 3)
        assert other.call(content) == {1}
        other.call(free)
        wait_until_let_go(other)
        assert mappings("self", other.process.pid) == 0


def a_process_without_room_for_an_event_holds_nothing() -> None:
    stream = gpupool.Stream()
    buffer = gpupool.empty(1000)
    with other_process() as other:
        number = _native.host_submit(stream)
        # One for the connection that asks, and none for what it is answered with.
        assert_says(
            other.refused(gpupool.Unavailable, attach_with_few_files, buffer.share(stream), 1), "may open no more files"
        )
        wait_until(lambda: shared_blocks() == [], "it is let go")
        _native.host_complete(stream, number)


def attach_with_few_files(kept: dict, token: gpupool.typing.ShareToken, files: int) -> None:
    # What this opens once.
    own = gpupool.empty(1)
    gpupool.attach(own.share()).free()
    spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(spare) + 1, hard))
    for _ in range(files):
        os.close(spare.pop())
    try:
        kept["buffer"] = gpupool.attach(token)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in spare:
            os.close(number)


def on_two_devices() -> None:
    buffer = in_pieces(1)
    with other_process() as other:
        token = buffer.share()
        for device in (0, 1):
            attach_and_let_go(other, token, device=device)
        both = mappings("self", other.process.pid)
        other.do(gpupool.empty_cache)
        assert mappings("self", other.process.pid) == 0
        for device in (0, 1):
            attach_and_let_go(other, token, device=device)
        assert mappings("self", other.process.pid) == both
        buffer.free()
        gpupool.empty_cache()
        assert mappings("self", other.process.pid) == 0


def whatever_call_fails_it_ends() -> None:
    with other_process() as other:
        # What is made once stays.
        first = in_pieces(1)
        attach_and_let_go(other, first.share())
        other.do(gpupool.empty_cache)
        for call in ("Bind", "ExchangeCaptureMode", "MemoryUnmap", "AddressFree", "ExtentRelease"):
            for is_given_back in (True, False):
                end_with_a_fault(other, call, is_given_back)


def end_with_a_fault(other: OtherProcess, call: str, is_given_back: bool) -> None:
    buffer = in_pieces(1)
    # Also what was imported is open until it is released.
    files = other.do(open_files)
    attach_and_let_go(other, buffer.share())
    other.do(inject, call)
    if is_given_back:
        buffer.free()
        gpupool.empty_cache()
    else:
        other.do(gpupool.empty_cache)
    wait_until(lambda: mappings("self", other.process.pid) == 0, f"it has ended though {call} has failed")
    wait_until(lambda: other.do(open_files) <= files, f"all is released though {call} has failed")
    other.do(_native.host_clear_faults)
    after = in_pieces(2)
    assert read_by(other, after.share()) == {2}
    wait_until_let_go(other)
    other.do(gpupool.empty_cache)


def inject(call: str) -> None:
    for after in range(3):
        _native.host_inject(call, "other", after)
