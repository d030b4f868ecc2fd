"""A buffer in other processes: the same words both ways, by tokens and by all that multiprocessing sends."""

import copy
import multiprocessing
import pickle

import gpupool
from errors import assert_says, raised
from other_process import MIB, attach, attached_bytes, content, fill, free, other_process, sent_bytes, values
from waiting import LONG, wait_until

SIZES = (1, 700, 3 * MIB, 65 * MIB)


def echo(queue, connection, argument) -> None:
    """Change what comes, and say what it was."""
    queue_buffer, pipe_buffer = queue.get(timeout=LONG), connection.recv()
    for number, buffer in enumerate((argument, queue_buffer, pipe_buffer)):
        connection.send((buffer.is_attached, buffer.nbytes, values(buffer)))
        buffer.fill(10 + number)
        bytes(buffer)
    connection.send("written")
    connection.recv()


def by_tokens() -> None:
    with other_process() as other:
        for nbytes in SIZES:
            buffer = gpupool.empty(nbytes)
            buffer.fill(1)
            token = buffer.share()
            assert (token.nbytes, gpupool.typing.ShareToken(bytes(token))) == (nbytes, token)
            assert pickle.loads(pickle.dumps(token)) == token == copy.copy(token)
            other.call(attach, token)
            assert other.call(content) == {1}
            wait_until(lambda size=nbytes: other.call(attached_bytes) == size, "the ones before are let go")
            other.call(fill, 2)
            assert values(buffer) == {2}
            assert not buffer.is_attached
            other.call(free)
            # Also by its bytes, and a second time.
            other.call(attach, bytes(token))
            assert other.call(content) == {2}
            other.call(free)
        wait_until(lambda: other.call(attached_bytes) == 0, "nothing is attached")
        other.leave()


def in_the_middle_of_a_page() -> None:
    buffers = [gpupool.empty(5000) for _ in range(20)]
    for number, buffer in enumerate(buffers):
        buffer.fill(number)
    with other_process() as other:
        other.call(attach, buffers[7].share())
        assert other.call(content) == {7}
        other.call(fill, 99)
        assert [values(buffer) for buffer in buffers] == [{99 if n == 7 else n} for n in range(20)]


def by_multiprocessing() -> None:
    context = multiprocessing.get_context("spawn")
    queue, (connection, other) = context.Queue(), context.Pipe()
    buffers = [gpupool.empty(3 * MIB) for _ in range(3)]
    for number, buffer in enumerate(buffers):
        buffer.fill(number)
    process = context.Process(target=echo, args=(queue, other, buffers[0]))
    process.start()
    queue.put(buffers[1])
    connection.send(buffers[2])
    assert [connection.recv() for _ in range(3)] == [(True, 3 * MIB, {number}) for number in range(3)]
    assert connection.recv() == "written"
    assert [values(buffer) for buffer in buffers] == [{10}, {11}, {12}]
    wait_until(lambda: sent_bytes() == 0, "all have arrived")
    connection.send("done")
    process.join(LONG)
    assert process.exitcode == 0


def by_nothing_else() -> None:
    buffer = gpupool.empty(1)
    for copier in (pickle.dumps, copy.copy, copy.deepcopy):
        assert_says(
            raised(gpupool.InvalidValue, lambda copier=copier: copier(buffer)), "the token that share() returns"
        )


def what_attaches_its_own() -> None:
    buffer = gpupool.empty(MIB)
    buffer.fill(5)
    same = gpupool.attach(buffer.share())
    assert (same.ptr, same.is_attached, values(same)) == (buffer.ptr, True, {5})
    assert gpupool.memory_stats().attached_bytes == 0
    buffer.free()
    assert values(same) == {5}
    same.free()


def what_is_attached_is_not_shared_on() -> None:
    with other_process() as other:
        buffer = gpupool.empty(1)
        other.call(attach, buffer.share())
        for work in (share_attached, send_attached):
            assert_says(other.refused(gpupool.InvalidValue, work), "memory of another process")


def share_attached(kept: dict) -> None:
    kept["buffer"].share()


def send_attached(kept: dict) -> None:
    connection, _other = multiprocessing.Pipe()
    connection.send(kept["buffer"])


def what_was_attached_twice() -> None:
    with other_process() as other:
        buffer = gpupool.empty(4 * MIB)
        token = buffer.share()
        first = other.call(attach, token, "first")
        assert other.call(attach, token, "second") == first
        assert other.call(attached_bytes) == 4 * MIB
        other.call(free, "first")
        other.call(fill, 3, "second")
        assert values(buffer) == {3}
        other.call(free, "second")
        wait_until(lambda: other.call(attached_bytes) == 0, "nothing is attached")
