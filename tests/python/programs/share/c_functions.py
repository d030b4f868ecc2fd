"""Sharing by the table of C functions: any pointer into a block becomes a token, and a token a pointer to give up."""

import ctypes

import gpupool
from c_table import function
from gpupool import _native
from other_process import MIB, other_process, sent_bytes, shared_blocks
from waiting import wait_until

ROOM = 128
INVALID_VALUE, OTHER = 2, 5


def why() -> str:
    return function("last_error", ctypes.c_char_p)().decode()


def share(pointer: int, room: int = ROOM, is_sent: int = 0, device: int = 0) -> tuple[int, bytes, int]:
    """Return the status, the token and the offset."""
    token, nbytes, offset = (ctypes.c_char * ROOM)(), ctypes.c_uint64(room), ctypes.c_uint64()
    status = function("share")(
        ctypes.c_void_p(pointer), device, None, is_sent, token, ctypes.byref(nbytes), ctypes.byref(offset)
    )
    return status, token.raw[: nbytes.value], offset.value


def attach(kept: dict, token: bytes, device: int = 0) -> tuple[int, str]:
    attached, pointer = ctypes.c_void_p(1), ctypes.c_void_p(1)
    status = function("attach")(
        token, ctypes.c_uint64(len(token)), device, None, ctypes.byref(attached), ctypes.byref(pointer)
    )
    assert bool(attached) == bool(pointer) == (status == 0)
    kept["attached"], kept["pointer"] = attached, pointer
    return (status, why()) if status else (status, "")


def word_at(kept: dict, offset: int) -> int:
    return ctypes.c_uint64.from_address(kept["pointer"].value + offset).value


def finish(kept: dict) -> None:
    """Wait for the stream that it was attached for."""
    gpupool.synchronize(0)


def detach(kept: dict, device: int) -> int:
    assert function("attached_record_stream")(kept["attached"], 0, None) == 0
    return function("detach")(kept["attached"], device, None)


def main() -> None:
    buffers = [gpupool.empty(nbytes) for nbytes in (700, 5 * MIB, 600, 9 * MIB)]
    with other_process() as other:
        for buffer in buffers:
            for offset in (0, 8, buffer.nbytes - 8):
                ctypes.c_uint64.from_address(buffer.ptr + offset).value = offset + 77
                status, token, found = share(buffer.ptr + offset)
                assert (status, found, gpupool.typing.ShareToken(token).nbytes) == (0, offset, buffer.nbytes), why()
                for device in (0, -1):
                    assert other.call(attach, token, device) == (0, "")
                    assert other.call(word_at, offset) == offset + 77
                    assert other.call(detach, device) == 0
        wait_until(lambda: shared_blocks() == [], "nothing is attached")
        # For device -1 nothing is waited for: what is under way here does not hold up the other process.
        number = _native.host_submit(0)
        status, token, _ = share(buffers[0].ptr + 8, device=-1)
        assert (status, other.call(attach, token)) == (0, (0, ""))
        other.call(finish)
        assert other.call(word_at, 8) == 85
        assert other.call(detach, 0) == 0
        wait_until(lambda: shared_blocks() == [], "it is let go")
        _native.host_complete(0, number)
        # What was sent stays until it has arrived.
        status, token, _ = share(buffers[1].ptr, is_sent=1)
        buffers[1].free()
        assert (status, gpupool.memory_stats().sent_bytes) == (0, 5 * MIB)
        assert other.call(attach, token) == (0, "")
        assert other.call(word_at, 8) == 85
        wait_until(lambda: sent_bytes() == 0, "it has arrived")
        assert other.call(detach, 0) == 0
        # Refusals, with a reason.
        assert share(buffers[0].ptr, room=50)[0] == INVALID_VALUE
        assert "108 bytes" in why()
        assert "room for 50" in why()
        assert share(buffers[0].ptr + buffers[0].nbytes)[0] == INVALID_VALUE
        assert "no block" in why()
        assert share(0x10)[0] == INVALID_VALUE
        status, text = other.call(attach, token)
        assert status == INVALID_VALUE, text
        assert "was freed" in text
        assert other.call(attach, b"rubbish")[0] == INVALID_VALUE
