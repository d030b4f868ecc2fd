"""Processes that send a neighbour rubbish, too much, or nothing: they get nothing, and harm no other."""

import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import gpupool
from neighbour_work import cache, reserved
from other_process import MIB, other_process

MAGIC, FORMAT = 0x6E707067, 1
TELL, FREE, OFFERED, POOLS = 0, 1, 3, 4
# That of the simulated device.
DEVICE = struct.pack("<QQ", os.stat(os.environ["GPUPOOL_HOST_SHARED"]).st_ino, 0)


def question(what: int, device: bytes = DEVICE, number: int = 0, within: int = 1, form: int = FORMAT) -> bytes:
    return struct.pack("<IHH16sQI", MAGIC, form, what, device, number, within)


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
        other.call(take, 40 * MIB)
        assert gpupool.memory_stats().reserved_bytes <= 24 * MIB


def take(kept: dict, nbytes: int) -> None:
    kept["buffer"] = gpupool.empty(nbytes)


def rubbish() -> None:
    gpupool.set_neighbour()
    wrong = (
        b"x",
        bytes(36),
        b"GET / HTTP/1.1",
        os.urandom(8192),
        os.urandom(60_000),
        question(6),
        question(65535),
        question(TELL, form=2),
        question(TELL) + b"x",
        question(TELL)[:-1],
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

        def given(*what) -> int:
            connection.send(question(*what))
            magic, form, number = struct.unpack("<IHQ", connection.recv(100))
            assert (magic, form) == (MAGIC, FORMAT)
            return number

        assert given(FREE, b"\xff" * 16, 1 << 20) == 0
        assert given(OFFERED, DEVICE, 2**64 - 1, 2**32 - 1) == 0
        assert given(FREE, DEVICE, 0) == 0
        # All that is above the guarantee, and no more.
        assert given(FREE, DEVICE, 2**64 - 1) == 8 * MIB
        assert given(FREE, DEVICE, 2**64 - 1) == 0
    assert reserved({}) == 16 * MIB
    gpupool.empty_cache()
    gpupool.set_neighbour()
    a_neighbour_is_served()


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
                connection.send(question(TELL))
        except OSError:
            # It was disconnected, or waits.
            pass
        a_neighbour_is_served()


class Stranger(threading.Thread):
    """A process that tells of itself, and answers the question for its pools with something else, or not at all."""

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
            assert connection.recv(100) == question(TELL, bytes(16), 2**64 - 1, 0)
            held = struct.pack("<16s12Q", DEVICE, *(1, 0, 0, 0, 0, 0, 0, 0, 0), *(2**64 - 1, 0, 2**64 - 1))
            connection.send(struct.pack("<IHII64s", MAGIC, FORMAT, 7, 1, b"stranger") + held)
        connection, _ = self._listener.accept()
        with connection:
            self.asked = connection.recv(100)
            if self._answer is not None:
                connection.send(self._answer)


def pools_that_are_told_wrongly() -> None:
    gpupool.set_neighbour()
    head = struct.pack("<IH", MAGIC, FORMAT)
    for answer in (None, b"x", os.urandom(8192), head + bytes(111), head + b"\xff" * 112, head + bytes(65 * 112)):
        stranger = Stranger(answer)
        stranger.start()
        (it,) = [each for each in gpupool.neighbours(pools=True) if not each.is_self]
        assert (it.name, it.pools) == ("stranger", None), answer
        stranger.join()
        assert stranger.asked == question(POOLS, within=0)
        stranger.path.unlink()
    a_neighbour_is_served()


def another_user() -> None:
    gpupool.set_neighbour()
    (path,) = Path(os.environ["GPUPOOL_NEIGHBOURS"]).iterdir()
    path.chmod(0o777)
    ask = (
        "import os, socket, sys\n"
        "os.chdir(sys.argv[1])\n"
        "os.setuid(12345)\n"
        "one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "one.settimeout(40)\n"
        "one.connect(sys.argv[2])\n"
        "try:\n"
        "    one.send(bytes.fromhex(sys.argv[3]))\n"
        "    answer = one.recv(100)\n"
        "except (BrokenPipeError, ConnectionResetError):\n"
        "    answer = b''\n"
        "assert answer == b'', answer\n"
    )
    subprocess.run(
        [sys.executable, "-c", ask, str(path.parent), path.name, question(TELL).hex()], check=True, timeout=60
    )
    a_neighbour_is_served()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
