"""Processes that send rubbish, stall, guess, or have tokens of elsewhere: they get nothing, and harm no other."""

import contextlib
import os
import random
import resource
import secrets
import socket
import struct
import threading
import warnings
from pathlib import Path

import gpupool
from errors import assert_says, raised
from forking import in_child
from messages import (
    CHANNEL,
    DESCRIBE,
    DESCRIBED,
    EVENTS,
    EXTENTS,
    FAILED,
    GIVEN_EVENTS,
    GIVEN_EXTENTS,
    HEAD,
    HELD,
    HOLD,
    IS_CHANNEL,
    LET_GO,
    REFUSED,
    TO_END,
    answer,
    block_question,
    give,
    kind_of,
    number,
    numbers,
    tell,
    text,
)
from other_process import MIB, address_of, attach, open_files, other_process, read_by, shared_blocks, stopped
from waiting import wait_until

# From Python 3.12 on it warns of a fork where gpupool has a thread, which is what is tried here.
warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)

# Where a token has what.
BOOT, PROCESS, NAME, SECRET, BLOCK, SIZE, DEVICE = 12, 32, 36, 52, 68, 84, 92
# What follows a question, where it is about the first few.
VALUES = {HOLD: (0,), DESCRIBE: (0,), EXTENTS: (0, 8), LET_GO: (0,)}


def changed(token: gpupool.typing.ShareToken, at: int, data: bytes) -> bytes:
    """Return a token's bytes with some of them changed."""
    copy = bytearray(bytes(token))
    copy[at : at + len(data)] = data
    return bytes(copy)


def connected(token: gpupool.typing.ShareToken) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address_of(token))
    connection.settimeout(40)
    return connection


def request(token: gpupool.typing.ShareToken, ask: int, secret: bytes | None = None, block: int | None = None) -> bytes:
    secret = bytes(token)[SECRET : SECRET + 16] if secret is None else secret
    block = struct.unpack_from("<Q", bytes(token), BLOCK)[0] if block is None else block
    return block_question(secret, block, ask, *VALUES.get(ask, ()))


def asked(connection: socket.socket, question: bytes) -> tuple[int, int]:
    """Return what kind of answer a question gets, and how many descriptors come along."""
    connection.send(question)
    data, received, _, _ = socket.recv_fds(connection, 8192, 32)
    for number_of_file in received:
        os.close(number_of_file)
    return kind_of(data), len(received)


def others_are_served(token: gpupool.typing.ShareToken) -> None:
    """Check that a well-behaved process still gets the buffer."""
    with other_process() as other:
        assert read_by(other, token) == {1}


def shared() -> tuple[gpupool.DeviceBuffer, gpupool.typing.ShareToken]:
    buffer = gpupool.empty(MIB)
    buffer.fill(1)
    return buffer, buffer.share()


def rubbish() -> None:
    _buffer, token = shared()
    right = request(token, HOLD)
    for data in (
        os.urandom(8192),
        os.urandom(60_000),
        right[:-1],
        # This process is no neighbour.
        tell(),
        give(0, bytes(token)[DEVICE:], MIB, 1),
    ):
        with connected(token) as connection:
            connection.send(data)
            assert connection.recv(100) == b"", "rubbish was answered"
    others_are_served(token)


def stalling() -> None:
    _buffer, token = shared()
    # An eighth of them is for processes that hold no block.
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    silent = [connected(token) for _ in range(200)]
    # One that asks and asks, and takes no answer.
    greedy = connected(token)
    greedy.setblocking(False)
    greedy.send(request(token, HOLD))
    try:
        for _ in range(100_000):
            greedy.send(request(token, EXTENTS))
    except BlockingIOError:
        pass
    others_are_served(token)
    assert len(os.listdir("/proc/self/fd")) < 1000
    for connection in silent[1:]:
        connection.close()
    # Those that came first made room.
    assert silent[0].recv(100) == b""
    greedy.close()


def many_that_are_silent() -> None:
    _buffer, token = shared()
    with other_process() as other, other_process() as silent:
        # More connect than this process has descriptors for.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        silent.call(connect_often, token, 400)
        silent.begin(connect_often, token, 2600)
        assert read_by(other, token) == {1}
        silent.kill()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect_often(kept: dict, token: gpupool.typing.ShareToken, count: int) -> None:
    """Connect, and say nothing."""
    for _ in range(count):
        kept[object()] = connected(token)


def guesses() -> None:
    _buffer, token = shared()
    with connected(token) as connection:
        for wrong in (
            request(token, HOLD, secret=secrets.token_bytes(16)),
            request(token, HOLD, secret=bytes(16)),
            request(token, HOLD, block=99),
            # Without a hold.
            request(token, EXTENTS),
        ):
            assert asked(connection, wrong) == (REFUSED, 0)
        assert asked(connection, request(token, HOLD)) == (HELD, 0)
        assert asked(connection, request(token, EXTENTS, secret=secrets.token_bytes(16))) == (REFUSED, 0)
        assert asked(connection, request(token, EXTENTS)) == (GIVEN_EXTENTS, 1)
    others_are_served(token)


def extents_that_have_gone_back_are_not_given() -> None:
    pool = gpupool.MemPool()
    buffer = pool.empty(MIB)
    buffer.fill(1)
    token = buffer.share()
    with connected(token) as first, connected(token) as second:
        assert asked(first, request(token, HOLD)) == (HELD, 0)
        # One process: what the first connection holds the second lets go.
        second.send(request(token, LET_GO))
        assert asked(second, request(token, EXTENTS)) == (REFUSED, 0)
        pool.sleep()
        pool.wake()
        # The block is held again, and lies in other memory.
        assert asked(second, request(token, HOLD)) == (HELD, 0)
        for ask in (EXTENTS, DESCRIBE):
            assert asked(first, request(token, ask)) == (REFUSED, 0)
        for connection in (second, first):
            assert asked(connection, request(token, HOLD)) == (HELD, 0)
            assert asked(connection, request(token, EXTENTS)) == (GIVEN_EXTENTS, 1)
    others_are_served(token)


def share_one(kept: dict) -> gpupool.typing.ShareToken:
    kept["shared"], token = shared()
    return token


def holders() -> list[int]:
    return [process for block in shared_blocks() for process in block[3]]


def an_answer_that_is_not_waited_for_holds_nothing() -> None:
    with other_process() as owner:
        token = owner.call(share_one)
        # As attach does, whose owner does not answer in time.
        with stopped(owner.process.pid), connected(token) as impatient:
            impatient.send(request(token, HOLD))
        with connected(token) as connection:
            # Answered after the first.
            assert asked(connection, request(token, EXTENTS)) == (REFUSED, 0)
            assert owner.do(holders) == []
            # One that is held stays so, whatever becomes of another request.
            assert asked(connection, request(token, HOLD)) == (HELD, 0)
            with stopped(owner.process.pid), connected(token) as impatient:
                impatient.send(request(token, HOLD))
            assert asked(connection, request(token, EXTENTS)) == (GIVEN_EXTENTS, 1)
            assert owner.do(holders) == [os.getpid()]


def what_was_let_go_by_a_connection_that_is_ended_is_let_go() -> None:
    with other_process() as owner:
        token = owner.call(share_one)
        with connected(token) as holding:
            assert asked(holding, request(token, HOLD)) == (HELD, 0)
            assert owner.do(holders) == [os.getpid()]
            limits = resource.prlimit(owner.process.pid, resource.RLIMIT_NOFILE)
            # The owner has a descriptor for one more connection, and then for none.
            most = owner.do(open_files) + 1
            resource.prlimit(owner.process.pid, resource.RLIMIT_NOFILE, (most, limits[1]))
            with stopped(owner.process.pid):
                letting_go, beyond = connected(token), connected(token)
                letting_go.send(request(token, LET_GO))
            with contextlib.suppress(ConnectionResetError):
                assert letting_go.recv(100) == b"", "the connection was not ended"
            resource.prlimit(owner.process.pid, resource.RLIMIT_NOFILE, limits)
            assert owner.do(holders) == []
            letting_go.close()
            beyond.close()


def tokens_of_elsewhere() -> None:
    _buffer, token = shared()
    for data, words in (
        (changed(token, BOOT, secrets.token_bytes(16)), ("another machine", "send the content")),
        (b"", ("not a token",)),
        (changed(token, len(bytes(token)) - 16, bytes(16)), ("does not see", "CUDA_VISIBLE_DEVICES")),
    ):
        assert_says(raised(gpupool.InvalidValue, gpupool.attach, data), *words)
    for data in ("text", 7, None):
        assert_says(raised(TypeError, gpupool.attach, data), "attach takes a ShareToken")
    with other_process() as other:
        unheard = changed(token, NAME, bytes(16))
        for data, error, words in (
            (changed(token, SECRET, bytes(16)), gpupool.InvalidValue, "does not share the buffer"),
            # Nothing listens there: this process lives, and its socket is not to be had.
            (unheard, gpupool.Unavailable, "network namespace"),
            (changed(unheard, PROCESS, struct.pack("<I", 2**22 + 1)), gpupool.Unavailable, "has ended"),
        ):
            assert_says(other.refused(error, attach, data), words)


def tokens_that_say_more_than_is_there() -> None:
    buffer, token = shared()
    elsewhere = bytes(gpupool.empty(MIB, gpupool.Stream(1)).share())[DEVICE:]
    wrong = [
        *(changed(token, SIZE, struct.pack("<Q", size)) for size in (0, MIB - 1, MIB + 1, 100 * MIB, 2**64 - 1)),
        changed(token, DEVICE, elsewhere),
    ]
    with other_process() as other:
        for data in wrong:
            assert_says(raised(gpupool.InvalidValue, gpupool.attach, data), "give what share() returned")
            assert_says(other.refused(gpupool.InvalidValue, attach, data), "give what share() returned")
        assert read_by(other, token) == {1}
    gpupool.attach(token).free()
    buffer.free()

    def is_let_go():
        # A block that others had is free once memory is looked for.
        gpupool.empty_cache()
        return gpupool.memory_stats(device=0).live_blocks == 0

    wait_until(is_let_go, "what was refused is let go")


def nothing_is_left_in_the_file_system() -> None:
    _buffer, token = shared()
    assert f"@{address_of(token)[1:].decode()}" in Path("/proc/net/unix").read_text()


class Liar(threading.Thread):
    """A process that shares nothing, and answers whatever it is asked with what chance makes."""

    def __init__(self, chance: random.Random, token: gpupool.typing.ShareToken) -> None:
        super().__init__(daemon=True)
        self._chance = chance
        self._device = bytes(token)[DEVICE:]
        self.token = changed(token, NAME, chance.randbytes(16))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address_of(self.token))
        self._listener.listen()

    def run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while asked := connection.recv(9000):
                packet, count = self._lie(asked)
                if packet is not None:
                    files = [os.memfd_create("lie") for _ in range(count)]
                    try:
                        socket.send_fds(connection, [packet], files)
                    finally:
                        for file in files:
                            os.close(file)

    def _lie(self, asked: bytes) -> tuple[bytes | None, int]:
        """Return an answer, and how many descriptors come along; none where none is waited for."""
        chance, at = self._chance, len(HEAD) + 1
        # Behind the number of the block and the secret.
        while asked[at] > 0x7F:
            at += 1
        what = asked[at + 17 : at + 18]
        if not what or what[0] >= LET_GO:
            return None, 0
        sizes = (0, 1, 4096, MIB, 2 * MIB, 64 * MIB, 2**47, 2**63, 2**64 - 1)
        size, few = lambda: chance.choice(sizes), lambda: chance.choice((0, 1, 1, 2, 3))
        names = text(chance.randbytes(64 * few() + chance.choice((0, 0, 0, 1))))
        lead, nbytes = chance.choice((0, 0, size())), chance.choice((MIB, MIB, size()))
        place = numbers(
            lead, nbytes, chance.randrange(3), chance.choice((1, 2, 300, size())), chance.choice((0, 0, few(), size()))
        )
        described = [numbers(chance.randrange(4), chance.choice((2 * MIB, size()))) for _ in range(few())]
        right = {
            HOLD: answer(HELD, place, self._device, names if chance.random() < 0.5 else text(b"")),
            DESCRIBE: answer(DESCRIBED, number(len(described)), *described),
            EXTENTS: answer(GIVEN_EXTENTS),
            EVENTS: answer(GIVEN_EVENTS, names),
            CHANNEL: answer(IS_CHANNEL),
        }
        packet = right[what[0]]
        if chance.random() < 0.15:
            packet = chance.choice([*right.values(), answer(chance.choice((REFUSED, FAILED)), text("no"))])
        elif chance.random() < 0.15:
            broken = bytearray(packet)
            broken[chance.randrange(len(broken))] = chance.randrange(256)
            packet = bytes(broken[: chance.randrange(1, len(broken) + 1)])
        elif what[0] == CHANNEL and chance.random() < 0.5:
            packet = answer(TO_END, number(2), numbers(1, 2**64 - 1))
        return packet, few() if what[0] != DESCRIBE else 0


def owners_that_lie_harm_nobody() -> None:
    _buffer, token = shared()
    liar = Liar(random.Random(7), token)
    liar.start()
    before = gpupool.memory_stats().reserved_bytes
    refused = 0
    for _ in range(300):
        try:
            gpupool.attach(liar.token).free()
        except gpupool.Error as error:
            str(error)
            refused += 1
    assert refused > 100
    wait_until(lambda: gpupool.memory_stats().attached_bytes == 0, "nothing that a liar told of is attached")
    assert gpupool.memory_stats().reserved_bytes == before
    others_are_served(token)


class Boaster(Liar):
    """Tells of as many events and extents as there may be, and names none of them."""

    def __init__(self, events: int, extents: int, token: gpupool.typing.ShareToken) -> None:
        super().__init__(random.Random(events), token)
        self._place = numbers(0, MIB, 1, extents, events)
        self.asked = 0

    def _lie(self, asked: bytes) -> tuple[bytes | None, int]:
        self.asked += 1
        # Whoever asks on and on is to end some time.
        if self.asked > 1000:
            return b"", 0
        right = {
            HOLD: answer(HELD, self._place, self._device, text(b"")),
            DESCRIBE: answer(DESCRIBED, number(0)),
            EVENTS: answer(GIVEN_EVENTS, text(b"")),
        }
        return right.get(asked[len(HEAD) + 18]), 0


def an_owner_that_tells_of_more_than_it_names_is_asked_no_more() -> None:
    _buffer, token = shared()
    for events, extents in ((2**24, 1), (0, 2**24)):
        boaster = Boaster(events, extents, token)
        boaster.start()
        raised(gpupool.InternalError, gpupool.attach, boaster.token)
        # The first of each, and that nothing is held.
        assert boaster.asked <= 3, boaster.asked
    others_are_served(token)


class Flood(Liar):
    """Shares a block as far as a process needs to attach it, and then names mappings to end without an end."""

    def __init__(self, token: gpupool.typing.ShareToken) -> None:
        super().__init__(random.Random(), token)
        self._extent = os.memfd_create("extent")
        os.ftruncate(self._extent, 2 * MIB)

    def _serve(self, connection: socket.socket) -> None:
        answers = {
            HOLD: answer(HELD, numbers(0, MIB, 7, 1, 0), self._device, text(b"")),
            DESCRIBE: answer(DESCRIBED, number(1), numbers(1, 2 * MIB)),
            EXTENTS: answer(GIVEN_EXTENTS),
            CHANNEL: answer(IS_CHANNEL),
        }
        what = None
        while what not in (EXTENTS, CHANNEL):
            what = connection.recv(100)[len(HEAD) + 18]
            socket.send_fds(connection, [answers[what]], [self._extent] if what == EXTENTS else [])
        for _ in range(3 if what == CHANNEL else 0):
            threading.Thread(target=self._flood, args=(connection,), daemon=True).start()

    def _flood(self, connection: socket.socket) -> None:
        ended = answer(TO_END, number(512), numbers(*range(2**40, 2**40 + 512)))
        while True:
            connection.send(ended)


def flood(kept: dict, token: gpupool.typing.ShareToken) -> bytes:
    kept["flood"] = Flood(token)
    kept["flood"].start()
    return kept["flood"].token


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def an_owner_that_names_mappings_without_an_end_delays_no_other() -> None:
    _buffer, token = shared()
    with other_process() as owner:
        attached = gpupool.attach(owner.call(flood, token))
        others_are_served(token)
        before = resident_bytes()
        for _ in range(3):
            others_are_served(token)
        # Nothing is kept for an owner that takes no answers.
        assert resident_bytes() < before + 4 * MIB
        owner.kill()
    attached.free()
    wait_until(lambda: gpupool.memory_stats().attached_bytes == 0, "what was attached is let go")


def another_user() -> None:
    _buffer, token = shared()

    def ask() -> None:
        os.setresuid(65534, 65534, 65534)
        connection = connected(token)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send(request(token, HOLD))
            assert connection.recv(100) == b"", "another user was served"

    in_child(ask)
    wait_until(lambda: shared_blocks() == [], "nothing is held")
    others_are_served(token)
