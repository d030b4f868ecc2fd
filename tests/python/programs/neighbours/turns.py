"""Claims wait for their turn, in the order in which they were made. The device has 64 MiB for all processes."""

import signal
import threading

import gpupool
from errors import assert_says, raised
from neighbour_work import cache, claim, claimed_by, offer, release, reserved
from other_process import MIB, OtherProcess, other_process
from waiting import LONG, wait_until

DEVICE = 64 * MIB
TURNS = 20


def begin_claim(other: OtherProcess, nbytes: int) -> None:
    """Have another process wait for a claim."""
    other.begin(claim, nbytes, LONG)
    wait_until(lambda: claimed_by(other) == nbytes, "the other process waits for its claim")


def a_claim_waits_until_there_is_room() -> None:
    with other_process() as other:
        with gpupool.claim(40 * MIB):
            begin_claim(other, 30 * MIB)
        assert other.end() == 30 * MIB
        # What is taken is no room, and what is freed is, also as long as it is in the cache.
        buffer = gpupool.empty(34 * MIB)
        other.call(release)
        begin_claim(other, 40 * MIB)
        buffer.free()
        assert other.end() == 40 * MIB
        assert gpupool.memory_stats().reserved_bytes == 34 * MIB


def claims_wait_in_line() -> None:
    with other_process() as first, other_process() as second, gpupool.claim(40 * MIB):
        begin_claim(first, 30 * MIB)
        # There is room for these, but not beside the one before them.
        raised(gpupool.OutOfMemory, gpupool.claim, 10 * MIB)
        begin_claim(second, 20 * MIB)
        first.kill()
        assert second.end() == 20 * MIB


def one_without_an_end_is_refused_in_a_callback() -> None:
    held, said = gpupool.empty(40 * MIB), []

    def claim_in_callback(device: int, nbytes: int) -> bool:
        try:
            said.append(str(gpupool.claim(40 * MIB, timeout=float("inf"))))
        except gpupool.InvalidValue as refused:
            said.append(str(refused))
        return False

    def is_in_line() -> bool:
        return any(each.is_self and each.claimed_bytes for each in gpupool.neighbours())

    callback = gpupool.on_oom(claim_in_callback)
    thread = threading.Thread(target=raised, args=(gpupool.OutOfMemory, gpupool.empty, 60 * MIB))
    thread.start()
    wait_until(lambda: said or is_in_line(), "the callback waits for its claim or is refused")
    held.free()
    thread.join()
    callback.remove()
    assert_says(said[0], "a callback of on_oom may not wait until so much memory can be claimed, without a timeout")
    # Anywhere else, and where there is no wait.
    gpupool.claim(20 * MIB, timeout=float("inf")).release()


def one_that_gives_up_leaves_the_line() -> None:
    with other_process() as other, gpupool.claim(40 * MIB):
        assert_says(other.refused(gpupool.OutOfMemory, claim, 30 * MIB, 0.01), "could have 24.0 MiB", "or wait longer")
        assert not claimed_by(other)
        with gpupool.claim(24 * MIB):
            pass


def what_the_device_never_has_is_refused_at_once() -> None:
    raised(gpupool.OutOfMemory, gpupool.claim, DEVICE + 1, timeout=float("inf"))
    for timeout in (-1, float("nan"), True):
        raised(gpupool.InvalidValue, gpupool.claim, 1, timeout=timeout)


def ctrl_c_ends_the_wait() -> None:
    with other_process() as other:
        other.call(claim, 40 * MIB)
        interrupt = threading.Thread(target=interrupt_once_claimed)
        interrupt.start()
        raised(KeyboardInterrupt, gpupool.claim, 30 * MIB, timeout=float("inf"))
        interrupt.join()
        assert gpupool.available_memory() == 24 * MIB


def interrupt_once_claimed() -> None:
    waits = lambda: any(each.is_self and each.claimed_bytes == 30 * MIB for each in gpupool.neighbours())  # noqa: E731
    wait_until(waits, "this process waits for its claim")
    signal.raise_signal(signal.SIGINT)


def free_memory_that_a_claim_is_for_stays() -> None:
    with other_process() as other:
        other.call(cache, 32 * MIB)
        other.call(claim, 24 * MIB)
        gpupool.set_neighbour()
        raised(gpupool.OutOfMemory, gpupool.empty, 42 * MIB)
        assert other.do(reserved) == 24 * MIB
        buffer = gpupool.empty(40 * MIB)
        buffer.free()
        other.call(release)
        gpupool.empty(64 * MIB)


def a_process_with_a_claim_keeps_its_pools_awake() -> None:
    with other_process() as other:
        other.call(offer, 40 * MIB)
        other.call(claim, 1)
        gpupool.set_neighbour()
        raised(gpupool.OutOfMemory, gpupool.empty, 48 * MIB)
        assert not other.of("pool", "is_asleep")
        other.call(release)
        gpupool.empty(48 * MIB)
        assert other.of("pool", "is_asleep")


def a_claim_covers_waking_what_sleeps_for_others() -> None:
    with other_process() as other:
        other.call(offer, 40 * MIB)
        gpupool.set_neighbour()
        buffer = gpupool.empty(48 * MIB)
        other.refused(gpupool.OutOfMemory, claim, 10 * MIB)
        buffer.free()
        assert other.call(claim, 24 * MIB) == 24 * MIB
        # Of the other's right to 64 MiB nothing is to be had.
        assert gpupool.available_memory() == 0


def a_claim_is_asked_for_at_once() -> None:
    with other_process() as other:
        other.do(gpupool.set_neighbour, "cache")
        other.call(cache, 64 * MIB)
        with gpupool.claim(48 * MIB):
            gpupool.empty(2 * MIB)
            assert other.do(reserved) == 16 * MIB


def turns_whose_peaks_do_not_fit_together() -> None:
    with other_process() as one, other_process() as other:
        for number, process in enumerate((one, other)):
            process.begin(work_in_turns, number)
        assert [one.end(), other.end()] == [TURNS, TURNS]


def work_in_turns(kept: dict, number: int) -> int:
    """Have a state of 4 MiB, and in each turn a peak of all 16 MiB; return in how many turns all was right."""
    stream, right = gpupool.Stream(), 0
    pool = gpupool.MemPool(sleeps_for_others=True, wakes_on_use=True)
    for turn in range(TURNS):
        with gpupool.claim((12 if turn else 16) * MIB, timeout=LONG), gpupool.use_mem_pool(pool):
            if turn == 0:
                state = pool.empty(4 * MIB, stream)
                state.fill(number, stream)
            pieces = [gpupool.empty(2 * MIB, stream) for _ in range(6)]
            for piece in pieces:
                piece.fill(turn, stream)
            kept_here = bytes(state).count(number + 2 * turn) == state.nbytes
            right += kept_here and all(bytes(piece).count(turn) == piece.nbytes for piece in pieces)
            state.fill(number + 2 * turn + 2, stream)
            stream.synchronize()
            del pieces, piece
    return right
