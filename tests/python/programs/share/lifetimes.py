"""A shared block is used again once every process that attached it has let go or has ended, and not before."""

import multiprocessing
import os
import resource
import signal
import socket
import threading

import gpupool
from errors import assert_says, raised
from other_process import (
    MIB,
    OtherProcess,
    address_of,
    attach,
    content,
    fill,
    fork_one_that_stays,
    free,
    is_full,
    open_files,
    other_process,
    sent_bytes,
    shared_blocks,
    values,
    wait_until_free,
)
from waiting import wait_until

# More than half of the device, so that there is no room for a second one.
LARGE = 40 * MIB


def large() -> gpupool.DeviceBuffer:
    buffer = gpupool.empty(LARGE)
    buffer.fill(1)
    return buffer


def held_until(let_go) -> None:
    """Check that a freed block is used again after this was done with the process that attached it."""
    with other_process() as other:
        buffer = large()
        other.call(attach, buffer.share())
        address = buffer.ptr
        buffer.free()
        assert is_full(LARGE)
        other.call(fill, 2)
        assert other.call(content) == {2}
        assert shared_blocks() == [(address, LARGE, True, (other.process.pid,))]
        let_go(other)
        wait_until_free(LARGE).free()
        assert shared_blocks() == []
        gpupool.empty_cache()


def freed_here_last() -> None:
    with other_process() as other:
        buffer = large()
        other.call(attach, buffer.share())
        other.call(free)
        assert values(buffer) == {1}
        wait_until(lambda: shared_blocks() == [], "the other process has let go")
        # At once: nothing is left to wait for.
        buffer.free()
        assert not is_full(LARGE)
        gpupool.empty_cache()


def attached_twice() -> None:
    with other_process() as other, other_process() as third:
        buffer = large()
        token = buffer.share()
        other.call(attach, token, "first")
        other.call(attach, token, "second")
        third.call(attach, token)
        buffer.free()
        other.call(free, "first")
        third.call(free)
        wait_until(lambda: shared_blocks()[0][3] == (other.process.pid,), "the third process has let go")
        assert is_full(LARGE)
        other.call(free, "second")
        wait_until_free(LARGE).free()
        gpupool.empty_cache()


def never_read() -> None:
    buffer = large()
    token = buffer.share()
    buffer.free()
    # Nothing keeps it for a token.
    assert not is_full(LARGE)
    with other_process() as other:
        assert_says(other.refused(gpupool.InvalidValue, attach, token), "was freed")
    gpupool.empty_cache()


def sent_and_freed() -> None:
    connection, other_end = multiprocessing.get_context("spawn").Pipe()
    buffer = large()
    connection.send(buffer)
    buffer.free()
    del buffer
    assert gpupool.memory_stats().sent_bytes == LARGE
    assert is_full(LARGE)
    with other_process() as other:
        other.put("buffer", receive, other_end)
        assert other.call(content) == {1}
        wait_until(lambda: sent_bytes() == 0, "it has arrived")
        assert is_full(LARGE)
        other.call(free)
        wait_until_free(LARGE).free()
    gpupool.empty_cache()


def recalled() -> None:
    connection, other_end = multiprocessing.get_context("spawn").Pipe()
    buffer = large()
    for _ in range(2):
        raised(TypeError, connection.send, (buffer, threading.Lock()))
    assert gpupool.memory_stats().sent_bytes == 2 * LARGE
    connection.send(buffer)
    buffer.recall()
    assert gpupool.memory_stats().sent_bytes == 0
    with other_process() as other:
        # What was sent in spite of that is received as long as the buffer lives.
        other.put("buffer", receive, other_end)
        assert other.call(content) == {1}
        other.call(free)
    raised(TypeError, connection.send, (buffer, threading.Lock()))
    buffer.recall()
    buffer.free()
    wait_until_free(LARGE).free()
    gpupool.empty_cache()


def receive(connection) -> gpupool.DeviceBuffer:
    return connection.recv()


def share_own(owner: OtherProcess, nbytes: int) -> gpupool.typing.ShareToken:
    owner.put("own", gpupool.empty, nbytes)
    owner.of("own", "fill", 7)
    return owner.of("own", "share")


def owner_ends_first() -> None:
    for end in (OtherProcess.leave, OtherProcess.kill):
        with other_process() as owner:
            token = share_own(owner, LARGE)
            same = gpupool.attach(token)
            end(owner)
        assert values(same) == {7}
        same.fill(8)
        assert values(same) == {8}
        error = raised(gpupool.Unavailable, lambda token=token: gpupool.attach(token))
        assert_says(error, f"process {token.process}", "has ended")
        same.free()
        wait_until(lambda: gpupool.memory_stats().attached_bytes == 0, "nothing is attached")


def owner_whose_child_keeps_its_socket_ends() -> None:
    with other_process() as owner:
        token = share_own(owner, MIB)
        child = owner.call(fork_one_that_stays)
        same = gpupool.attach(token)
        owner.kill()
        assert values(same) == {7}
        # The child does not listen.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            raised(ConnectionRefusedError, connection.connect, address_of(token))
        error = raised(gpupool.Unavailable, lambda: gpupool.attach(token))
        assert_says(error, "has ended")
        os.kill(child, signal.SIGKILL)
        same.free()


def child_of_an_attached_process() -> None:
    with other_process() as other:
        buffer = large()
        other.call(attach, buffer.share())
        child = other.call(fork_one_that_stays)
        buffer.free()
        other.kill()
        # The child has the connection, and is not the process.
        wait_until_free(LARGE).free()
        os.kill(child, signal.SIGKILL)
        gpupool.empty_cache()


def a_thousand() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with other_process() as other:
        buffers = [gpupool.empty(1000) for _ in range(950)] + [gpupool.empty(3 * MIB) for _ in range(10)]
        tokens = []
        for number, buffer in enumerate(buffers):
            buffer.fill(number % 251)
            tokens.append(buffer.share())
        assert other.call(attach_all, tokens) == [{number % 251} for number in range(len(buffers))]
        assert len(shared_blocks()) == len(buffers)
        other.call(free_all)
        wait_until(lambda: shared_blocks() == [], "all are let go")
    assert open_files() < 64


def attach_all(kept: dict, tokens: list) -> list[set[int]]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept["all"] = [gpupool.attach(token) for token in tokens]
    return [values(buffer) for buffer in kept["all"]]


def free_all(kept: dict) -> None:
    for buffer in kept.pop("all"):
        buffer.free()


def sleep_is_refused() -> None:
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        buffer = gpupool.empty(4 * MIB)
    buffer.fill(3)
    token = buffer.share()
    with other_process() as other:
        other.call(attach, token)
        calls = gpupool.memory_stats().driver_calls
        error = raised(gpupool.Unavailable, pool.sleep)
        assert_says(error, "cannot fall asleep", "attached 1 of its blocks")
        assert_says(raised(gpupool.Unavailable, gpupool.sleep), "cannot fall asleep")
        assert (pool.is_asleep, gpupool.memory_stats().driver_calls) == (False, calls)
        other.call(free)
        wait_until(lambda: shared_blocks() == [], "the other process has let go")
        # What nobody has attached sleeps, and comes back as other extents.
        pool.sleep()
        assert_says(raised(gpupool.Asleep, buffer.share), "wake")
        assert_says(other.refused(gpupool.Unavailable, attach, token), "asleep")
        pool.wake()
        other.call(attach, token)
        assert other.call(content) == {3}


def freed_by_a_process() -> None:
    held_until(lambda other: other.call(free))


def left_by_a_process() -> None:
    held_until(OtherProcess.leave)


def left_by_a_killed_process() -> None:
    held_until(OtherProcess.kill)
