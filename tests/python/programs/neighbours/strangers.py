"""Processes that send a neighbour rubbish, too much, or nothing: they get nothing, and harm no other."""

import contextlib
import os
import resource
import signal
import socket
import struct
import threading
import warnings
from pathlib import Path

import gpupool
from errors import raised
from forking import in_child
from messages import (
    FREE,
    GIVEN,
    HEAD,
    HELD,
    HOLD,
    OFFERED,
    TOLD,
    answer,
    block_question,
    give,
    held,
    kind_of,
    number,
    numbers,
    pool,
    read_numbers,
    tell,
    told,
)
from neighbour_work import cache, reserved
from other_process import MIB, address_of, attach, content, open_files, other_process
from sandbox import limit_descriptors
from waiting import wait_until

# From Python 3.12 on it warns of a fork where gpupool has a thread, which is what is tried here.
warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)

ALL = tell()
# That of the simulated device.
DEVICE = struct.pack("<QQ", os.stat(os.environ["GPUPOOL_HOST_SHARED"]).st_ino, 0)


def connected() -> socket.socket:
    """Connect to this process as its neighbours do."""
    (path,) = Path(os.environ["GPUPOOL_NEIGHBOURS"]).iterdir()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A socket's path may be shorter than a test's folder.
    os.chdir(path.parent)
    connection.connect(path.name)
    connection.settimeout(40)
    return connection


def a_neighbour_is_served() -> None:
    """Check that one that behaves is told, and given what is free."""
    with other_process() as other:
        buffers = [gpupool.empty(2 * MIB) for _ in range(24)]
        del buffers
        other.put("buffer", gpupool.empty, 40 * MIB)
        assert gpupool.memory_stats().reserved_bytes <= 24 * MIB


def free_while_in_use(nbytes: int, stream: gpupool.Stream) -> int:
    """Free memory that work on the stream uses, and return the work's number."""
    used = gpupool.empty(nbytes, stream)
    work = gpupool._native.host_submit(stream)
    used.free()
    return work


def number_of_block(token: bytes) -> int:
    return struct.unpack_from("<Q", token, 68)[0]


def rubbish() -> None:
    gpupool.set_neighbour()
    wrong = (
        os.urandom(8192),
        os.urandom(60_000),
        give(3, DEVICE, 1, 1),
        ALL[:-1],
    )
    for data in wrong:
        with connected() as connection:
            connection.send(data)
            assert connection.recv(100) == b"", f"rubbish was answered: {data[:40]}"
    a_neighbour_is_served()


def questions_out_of_place() -> None:
    gpupool.set_neighbour(guarantee=16 * MIB)
    cache({}, 24 * MIB)
    with connected() as connection:

        def given(spare: int, device: bytes, nbytes: int, within: int = 1) -> int:
            connection.send(give(spare, device, nbytes, within))
            packet = connection.recv(100)
            assert kind_of(packet) == GIVEN
            (nbytes,) = read_numbers(packet[len(HEAD) + 1 :])
            return nbytes

        assert given(FREE, b"\xff" * 16, 1 << 20) == 0
        assert given(OFFERED, DEVICE, 2**64 - 1, 2**32 - 1) == 0
        assert given(FREE, DEVICE, 0) == 0
        # All that is above the guarantee, and no more.
        assert given(FREE, DEVICE, 2**64 - 1) == 8 * MIB
        assert given(FREE, DEVICE, 2**64 - 1) == 0
    assert reserved() == 16 * MIB
    gpupool.empty_cache()
    gpupool.set_neighbour()
    a_neighbour_is_served()


def what_is_shared_is_handed_out_while_memory_is_given() -> None:
    gpupool.set_neighbour()
    shared, stream = gpupool.empty(2 * MIB), gpupool.Stream()
    shared.fill(1)
    token = shared.share()
    number = free_while_in_use(8 * MIB, stream)
    with other_process() as other, connected() as connection:
        # What is free is in use until the work is done, which is waited for.
        connection.send(give(FREE, DEVICE, 8 * MIB, 10_000))
        other.call(attach, token)
        assert other.call(content) == {1}
        connection.setblocking(False)
        try:
            raise AssertionError(f"it was given before: {connection.recv(100)!r}")
        except BlockingIOError:
            pass
        connection.settimeout(40)
        gpupool._native.host_complete(stream, number)
        assert connection.recv(100) == answer(GIVEN, numbers(8 * MIB))


def those_that_wait_for_memory_keep_few_descriptors() -> None:
    # An eighth of them is for processes that hold no block.
    limit_descriptors(256)
    gpupool.set_neighbour()
    stream = gpupool.Stream()
    number = free_while_in_use(8 * MIB, stream)
    asked = give(FREE, DEVICE, 8 * MIB, 10_000)
    before = len(os.listdir("/proc/self/fd"))
    waiting = []
    for _ in range(90):
        waiting.append(connected())
        waiting[-1].send(asked)
    # Those that came first make room, also the one that is being given to.
    assert waiting[0].recv(100) == b""
    assert len(os.listdir("/proc/self/fd")) <= before + len(waiting) + 256 // 8 + 2
    gpupool._native.host_complete(stream, number)
    # It asked last, and nothing is left for it.
    assert waiting[-1].recv(100) == answer(GIVEN, numbers(0))
    for connection in waiting:
        connection.close()
    a_neighbour_is_served()


def those_that_ask_nothing_take_no_place_of_one_that_waits_for_memory() -> None:
    # An eighth of them is for processes that hold no block.
    limit_descriptors(256)
    gpupool.set_neighbour()
    stream = gpupool.Stream()
    number = free_while_in_use(8 * MIB, stream)
    with connected() as waiting:
        waiting.send(give(FREE, DEVICE, 8 * MIB, 10_000))
        silent = [connected() for _ in range(80)]
        # Those that came first made room.
        assert silent[0].recv(100) == b""
        gpupool._native.host_complete(stream, number)
        assert waiting.recv(100) == answer(GIVEN, numbers(8 * MIB))
    for connection in silent:
        connection.close()
    a_neighbour_is_served()


def who_cannot_enter_the_folder_is_no_neighbour() -> None:
    gpupool.set_neighbour()
    buffer = gpupool.empty(MIB)
    token = buffer.share()
    cache({}, 24 * MIB)
    # The name by which memory is attached can be seen by processes that the folder is closed to.
    for asked in (ALL, give(FREE, DEVICE, 24 * MIB, 1)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(address_of(token))
            connection.settimeout(40)
            connection.send(asked)
            assert connection.recv(8192) == b"", "one that is no neighbour was answered"
    # Nor does a neighbour attach memory there.
    key = bytes(token)
    with connected() as connection:
        connection.send(block_question(key[52:68], number_of_block(key), HOLD, 0))
        assert connection.recv(8192) == b"", "a neighbour was given a block"
    gpupool.empty_cache()
    a_neighbour_is_served()


def share_one(kept: dict) -> bytes:
    gpupool.set_neighbour()
    kept["shared"] = gpupool.empty(MIB)
    return bytes(kept["shared"].share())


def one_that_holds_a_block_does_not_keep_the_last_descriptor() -> None:
    with other_process() as owner:
        token = owner.call(share_one)
        holding = []

        def hold() -> None:
            holding.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            holding[-1].connect(address_of(token))
            holding[-1].settimeout(40)
            holding[-1].send(block_question(token[52:68], number_of_block(token), HOLD, 0))
            assert kind_of(holding[-1].recv(8192)) == HELD

        hold()
        limits = resource.prlimit(owner.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(owner.process.pid, resource.RLIMIT_NOFILE, (owner.do(open_files), limits[1]))
        # By the descriptor to spare.
        hold()
        with connected() as neighbour:
            neighbour.send(ALL)
            assert kind_of(neighbour.recv(8192)) == TOLD
        resource.prlimit(owner.process.pid, resource.RLIMIT_NOFILE, limits)
        for connection in holding:
            connection.close()


def many_that_are_silent() -> None:
    gpupool.set_neighbour()
    silent = [connected() for _ in range(200)]
    a_neighbour_is_served()
    for connection in silent:
        connection.close()


def many_that_do_not_read() -> None:
    gpupool.set_neighbour()
    with connected() as connection:
        connection.setblocking(False)
        try:
            while True:
                connection.send(ALL)
        except OSError:
            # It was disconnected, or waits.
            pass
        a_neighbour_is_served()


class Stranger(threading.Thread):
    """A process that is asked once, and answers with something."""

    def __init__(self, answer: bytes | None) -> None:
        super().__init__(daemon=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = Path(os.environ["GPUPOOL_NEIGHBOURS"])
        os.chdir(folder)
        self.path = folder / f"gpupool-neighbour-{os.geteuid()}-{os.urandom(16).hex()}"
        self._listener.bind(self.path.name)
        self._listener.listen()
        self._answer = answer

    def run(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            self.asked = connection.recv(100)
            if self._answer is not None:
                connection.send(self._answer)


class Interrupting(Stranger):
    """A neighbour that has 8 MiB, and gives them once a signal has come while they are waited for."""

    def run(self) -> None:
        here = held(DEVICE, (8 * MIB, 0, 8 * MIB, 0, 8 * MIB, 0, 0, 0, 0), None, 0, None)
        for _ in range(2):
            connection, _ = self._listener.accept()
            with connection:
                if connection.recv(100) == ALL:
                    connection.send(told(7, "stranger", [here], []))
                    continue
                wait_until(is_main_thread_waiting, "it waits for the answer")
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                wait_until(is_main_thread_waiting, "it waits again")
                # Who waits no more has disconnected it.
                connection.send(answer(GIVEN, numbers(8 * MIB)))
        self._listener.close()


def is_main_thread_waiting() -> bool:
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[0] == "S"


def a_signal_does_not_end_the_wait_for_a_neighbour() -> None:
    signal.signal(signal.SIGUSR1, lambda *_: None)
    gpupool.set_neighbour()
    kept = gpupool.empty(60 * MIB)
    stranger = Interrupting(None)
    stranger.start()
    raised(gpupool.OutOfMemory, lambda: gpupool.empty(8 * MIB))
    stranger.join()
    assert gpupool.memory_stats().received_bytes == 8 * MIB
    kept.free()


def what_is_told_wrongly_is_not_listed() -> None:
    gpupool.set_neighbour()
    here, one = held(DEVICE, (1, 0, 0, 0, 0, 0, 0, 0, 0), None, 0, None), pool((0, 1), "pool", (1, 1, 1, 1))

    def named(answer: bytes | None, **arguments: bool) -> list:
        stranger = Stranger(answer)
        stranger.start()
        others = [each for each in gpupool.neighbours(**arguments) if not each.is_self]
        stranger.join()
        assert stranger.asked == tell(DEVICE if arguments else None)
        stranger.path.unlink()
        return [(each.name, [of.reserved_bytes for of in each.pools or ()]) for each in others]

    right = told(7, "stranger", [here], [one])
    assert named(right, pools=True) == [("stranger", [1])]
    assert named(right) == [("stranger", [])]
    for wrong in (None, os.urandom(8192), right[:-1], answer(GIVEN, number(1))):
        assert named(wrong, pools=True) == [], wrong
    a_neighbour_is_served()


def another_user() -> None:
    gpupool.set_neighbour()
    (path,) = Path(os.environ["GPUPOOL_NEIGHBOURS"]).iterdir()
    path.chmod(0o777)

    def ask() -> None:
        os.chdir(path.parent)
        os.setuid(12345)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.settimeout(40)
            one.connect(path.name)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                one.send(ALL)
                assert one.recv(100) == b"", "another user was answered"

    in_child(ask)
    a_neighbour_is_served()
