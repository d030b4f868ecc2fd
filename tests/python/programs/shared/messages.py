"""The packets of ``src/memory/peer/codec.rs``, written by hand: as processes write them that are none of gpupool's."""

import struct
from collections.abc import Iterable, Iterator

VERSION = 4
HEAD = b"gppl" + struct.pack("<H", VERSION)

# Kinds of questions, and of what is asked of a block and of a neighbour.
OF_BLOCK, UNMAPPED, OF_MEMORY = range(3)
HOLD, DESCRIBE, EXTENTS, EVENTS, CHANNEL, LET_GO, ARRIVED = range(7)
TELL, GIVE, PASSED_BY = range(3)
# What there is to give.
FREE, DISCARDABLE, OFFERED = range(3)
# Kinds of answers.
HELD, DESCRIBED, GIVEN_EXTENTS, GIVEN_EVENTS, IS_CHANNEL, TO_END, REFUSED, FAILED, TOLD, GIVEN = range(10)


def number(value: int) -> bytes:
    """Return a number as seven bits a byte, the lowest first."""
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*packed, value])


def numbers(*values: int) -> bytes:
    return b"".join(map(number, values))


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return number(len(data)) + data


def optional(value: int | None) -> bytes:
    return b"\0" if value is None else b"\1" + number(value)


def block_question(secret: bytes, block: int, ask: int, *values: int) -> bytes:
    return HEAD + numbers(OF_BLOCK, block) + secret + numbers(ask, *values)


def memory_question(ask: int, *fields: bytes) -> bytes:
    return HEAD + numbers(OF_MEMORY, ask) + b"".join(fields)


def tell(with_pools: bytes | None = None) -> bytes:
    """Return the question that every neighbour asks: of all claims, and for the pools of a device."""
    return memory_question(TELL, number(2**64 - 1), b"\0" if with_pools is None else b"\1" + with_pools)


def give(spare: int, device: bytes, nbytes: int, within: int) -> bytes:
    return memory_question(GIVE, number(spare), device, numbers(nbytes, within))


def answer(kind: int, *fields: bytes) -> bytes:
    return HEAD + number(kind) + b"".join(fields)


def kind_of(packet: bytes) -> int:
    """Return what kind of answer it is."""
    assert packet.startswith(HEAD), packet
    return packet[len(HEAD)]


def read_numbers(packed: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in packed:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0


def held(device: bytes, counts: Iterable[int], most: int | None, priority: int, limit: int | None) -> bytes:
    """Return what a process holds of a device, with nine counts, and nothing of what its libraries hold."""
    limits = optional(most) + number(priority * 2 ^ priority >> 31) + optional(limit)
    return device + numbers(*counts) + limits + optional(None)


def told(process: int, name: str | bytes, of_devices: list[bytes], pools: list[bytes] = ()) -> bytes:
    counted = (number(len(of_devices)), *of_devices, number(len(pools)), *pools)
    # Of other libraries it tells nothing.
    return answer(TOLD, number(process), text(name), *counted, number(0))


def pool(identity: tuple[int, int], name: str | bytes | None, counts: Iterable[int]) -> bytes:
    named = b"\0" if name is None else b"\1" + text(name)
    return numbers(*identity) + named + numbers(*counts)
