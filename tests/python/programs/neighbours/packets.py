"""Packets made at random: as questions to a neighbour, and as a neighbour's answers. They harm nobody."""

import contextlib
import os
import random
import socket
import struct
import threading
from pathlib import Path

import gpupool
from messages import (
    GIVEN,
    HEAD,
    PASSED_BY,
    TELL,
    answer,
    give,
    held,
    memory_question,
    pool,
    tell,
    told,
)
from messages import number as packed
from neighbour_work import cache, reserved
from other_process import MIB, other_process

FOLDER = Path(os.environ["GPUPOOL_NEIGHBOURS"])
DEVICE = struct.pack("<QQ", os.stat(os.environ["GPUPOOL_HOST_SHARED"]).st_ino, 0)
# What is at an edge somewhere.
NUMBERS = (0, 1, 2 * MIB, 64 * MIB, 2**31, 2**32 - 1, 2**47, 2**47 + 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)


def number(chance: random.Random) -> int:
    return chance.choice(NUMBERS) if chance.random() < 0.7 else chance.randrange(2**64)


def mutated(chance: random.Random, packet: bytes) -> bytes:
    """Return a packet, or one that is broken somewhere."""
    data = bytearray(packet)
    kind = chance.random()
    if kind < 0.2:
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif kind < 0.3:
        del data[chance.randrange(len(data)) :]
    elif kind < 0.35:
        data += os.urandom(chance.randrange(1, 9000))
    return bytes(data)


def device(chance: random.Random) -> bytes:
    return DEVICE if chance.random() < 0.8 else chance.randbytes(16)


def question(chance: random.Random) -> bytes:
    questions = (
        lambda: memory_question(TELL, packed(number(chance)), b"\0"),
        lambda: tell(device(chance)),
        lambda: give(chance.choice((0, 1, 2, 3)), device(chance), number(chance), chance.choice((0, 1))),
        lambda: memory_question(PASSED_BY, device(chance), packed(number(chance))),
        lambda: memory_question(chance.choice((3, 65535))),
    )
    return mutated(chance, chance.choice(questions)())


def some(chance: random.Random, count: int) -> list[int]:
    return [number(chance) for _ in range(count)]


def lie(chance: random.Random, asked: bytes) -> bytes:
    """Return what a neighbour might tell, or may not."""
    what = asked[len(HEAD) + 1]
    if what == TELL:
        of_devices = [
            held(device(chance), some(chance, 9), number(chance), chance.randrange(-(2**31), 2**31), number(chance))
            for _ in range(chance.randrange(4))
        ]
        of_pools = [pool((0, number(chance)), "pool", some(chance, 4)) for _ in range(chance.randrange(4))]
        return mutated(chance, told(chance.randrange(2**32), chance.randbytes(8), of_devices, of_pools))
    return mutated(chance, answer(GIVEN, packed(number(chance))))


def questions(seed: str, count: str) -> None:
    """Ask a process that has memory of every kind whatever it may be asked."""
    chance = random.Random(int(seed))
    gpupool.set_neighbour(guarantee=8 * MIB)
    claim = gpupool.claim(4 * MIB)
    cache({}, 24 * MIB)
    (path,) = FOLDER.iterdir()
    os.chdir(FOLDER)
    connections = []
    for _ in range(int(count)):
        if not connections or chance.random() < 0.3:
            connections.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
            while connections[-1].connect_ex(path.name) != 0:
                os.sched_yield()
        one = chance.choice(connections)
        try:
            one.send(question(chance))
            if chance.random() < 0.5:
                one.recv(9000)
        except BlockingIOError:
            pass
        except OSError:
            connections.remove(one)
            one.close()
        if len(connections) > 50:
            connections.pop(0).close()
    for one in connections:
        one.close()
    # What is guaranteed is still here.
    assert reserved() >= 8 * MIB
    claim.release()
    gpupool.empty_cache()
    with other_process() as other:
        assert other.call(cache, 8 * MIB) == 8 * MIB
        assert len(gpupool.neighbours()) >= 1
        gpupool.empty(56 * MIB).free()


class Liar(threading.Thread):
    """A neighbour that answers whatever it is asked with what chance makes."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.chdir(FOLDER)
        self._listener.bind(f"gpupool-neighbour-{os.geteuid()}-{os.urandom(16).hex()}")
        self._listener.listen()
        self._chance = chance

    def run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                asked = connection.recv(100)
                if asked and self._chance.random() < 0.98:
                    # Whoever asked may not wait for it.
                    with contextlib.suppress(OSError):
                        connection.send(lie(self._chance, asked))


def answers(seed: str, count: str) -> None:
    """Ask neighbours of which one tells anything: what comes is an answer or one of gpupool's errors."""
    chance = random.Random(int(seed))
    gpupool.set_neighbour()
    Liar(random.Random(int(seed) + 1)).start()
    for _ in range(int(count)):
        call = chance.choice((look, look_at_pools, gpupool.available_memory, take, claim))
        try:
            call()
        except gpupool.OutOfMemory as error:
            str(error)
        except gpupool.Unavailable:
            pass
    gpupool.empty(64 * MIB).free()


def look() -> None:
    for each in gpupool.neighbours():
        assert max(each.reserved_bytes, each.claimed_bytes, each.guarantee, each.most or 0) <= 2**47
        repr(each)


def look_at_pools() -> None:
    for each in gpupool.neighbours(pools=True):
        assert all(max(pool.reserved_bytes, pool.asleep_bytes) <= 2**47 for pool in each.pools or ())


def take() -> None:
    buffers = [gpupool.empty(40 * MIB)]
    buffers.append(gpupool.empty(40 * MIB))


def claim() -> None:
    gpupool.claim(8 * MIB).release()
