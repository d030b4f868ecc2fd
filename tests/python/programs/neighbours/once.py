"""What is claimed is granted once, whatever clocks say and whoever is stopped. The device has 64 MiB."""

import os
import socket
from pathlib import Path

import gpupool
from errors import assert_says, raised
from gpupool import _native
from neighbour_work import claim, claimed_by, release, try_claim
from other_process import MIB, do, other_process, put, stopped
from waiting import wait_until

HOUR = 3600 * 10**9
NOW = 10**18


def a_held_claim_counts_though_the_clock_was_set_back() -> None:
    with other_process() as one, other_process() as other:
        one.do(_native.host_set_clock, NOW)
        one.call(claim, 40 * MIB)
        for now in (NOW - HOUR, NOW, NOW + HOUR):
            other.do(_native.host_set_clock, now)
            assert not other.call(try_claim, 30 * MIB), f"granted twice, {now - NOW} ns later"
        # Its own ones as well.
        one.do(_native.host_set_clock, NOW - HOUR)
        one.refused(gpupool.OutOfMemory, do, gpupool.claim, 30 * MIB)


def what_a_process_gave_back_is_no_part_of_its_claim() -> None:
    with other_process() as one, other_process() as other:
        one.put("taken", gpupool.empty, 20 * MIB)
        one.call(claim, 20 * MIB)
        one.call(give_back)
        # Beside the claim there is what the process had before it.
        assert other.call(try_claim, 44 * MIB)
        one.put("taken", gpupool.empty, 20 * MIB)
        assert one.of("claim", "left") == 0


def give_back(kept: dict) -> None:
    kept.pop("taken").free()
    gpupool.empty_cache()


def of_two_claims_at_the_same_time_one_is_held_at_most() -> None:
    with other_process() as one, other_process() as other:
        both = (one, other)
        for process in both:
            process.do(_native.host_set_clock, NOW)
        granted = 0
        for _ in range(30):
            for process in both:
                process.begin(try_claim, 40 * MIB)
            held = [process.end() for process in both]
            assert held != [True, True], "granted twice"
            granted += held.count(True)
            for process in both:
                process.call(release)
        # One that waits gets it, though both wait.
        for process in both:
            process.begin(take_turns, 10)
        assert [process.end() for process in both] == [10, 10]


def take_turns(kept: dict, turns: int) -> int:
    for turn in range(turns):
        with gpupool.claim(40 * MIB, timeout=40):
            assert kept.get("claim") is None, turn
    return turns


def a_stopped_one_loses_its_claim_and_learns_it() -> None:
    gpupool.set_neighbour()
    with other_process() as other:
        other.call(claim, 40 * MIB)
        with stopped(other.process.pid), gpupool.claim(20 * MIB):
            # Beside that there is room for the other's.
            pass
        wait_until(lambda: claimed_by(other) == 40 * MIB, "the other process answers again")
        assert other.of("claim", "left") == 40 * MIB
        with stopped(other.process.pid):
            held = gpupool.claim(30 * MIB)
        wait_until(lambda: claimed_by(other) == 0, "the other process has lost its claim")
        assert other.of("claim", "left") == 0
        other.refused(gpupool.OutOfMemory, claim, 40 * MIB)
        # Whoever took what it had says so.
        buffer = gpupool.empty(30 * MIB)
        assert held.left == 0
        assert_says(
            other.refused(gpupool.OutOfMemory, put, "taken", gpupool.empty, 40 * MIB),
            "Its own claims to 40.0 MiB are lost",
            "Held by its neighbours, of which 1 of 1 answered in",
        )
        other.call(release)
        text = other.refused(gpupool.OutOfMemory, put, "taken", gpupool.empty, 40 * MIB)
        assert "lost" not in text
        buffer.free()
        held.release()
        assert other.call(try_claim, 40 * MIB)


def none_loses_its_claim_where_another_cannot_be_told() -> None:
    gpupool.set_neighbour()
    with other_process() as one, other_process() as busy:
        one.call(claim, 20 * MIB)
        # It is asked once before it is to be told.
        busy.call(listen_for, 1)
        with stopped(one.process.pid), stopped(busy.process.pid):
            assert_says(raised(gpupool.Unavailable, gpupool.claim, 30 * MIB), "1 neighbours could not be asked")
        wait_until(lambda: claimed_by(one) is not None, "the other process answers again")
        assert one.of("claim", "left") == 20 * MIB


def listen_for(kept: dict, most: int) -> None:
    """Be a neighbour for which at most so many others wait."""
    os.chdir(os.environ["GPUPOOL_NEIGHBOURS"])
    kept["listener"] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept["listener"].bind(f"gpupool-neighbour-{os.geteuid()}-{1:032x}")
    # The system allows one more.
    kept["listener"].listen(most - 1)


def a_stopped_one_is_asked_no_more_until_it_goes_on() -> None:
    with other_process() as other:
        other.do(gpupool.set_neighbour)
        (listener,) = Path(os.environ["GPUPOOL_NEIGHBOURS"]).iterdir()
        for _ in range(2):
            wait_until(lambda: claimed_by(other) == 0, "the other process answers")
            with stopped(other.process.pid):
                assert claimed_by(other) is None
                at_first = connections_to(listener.name)
                assert [claimed_by(other) for _ in range(9)] == [None] * 9
                # There is room for some thousand. Then it could not be passed by, and no claim would be granted.
                assert connections_to(listener.name) == at_first
                gpupool.claim(64 * MIB).release()


def connections_to(name: str) -> int:
    """Return how many wait for a neighbour, or are served."""
    return Path("/proc/net/unix").read_text().count(name)


def who_asked_in_vain_says_how_many_answered_and_what_they_have_claimed() -> None:
    gpupool.set_neighbour()
    with other_process() as one, other_process() as other:
        one.call(claim, 40 * MIB)
        other.call(claim, 1)
        with stopped(other.process.pid):
            buffer = gpupool.empty(20 * MIB)
            error = raised(gpupool.OutOfMemory, gpupool.empty, 60 * MIB)
            said = f'process {one.process.pid} "python'
            assert_says(error, "of which 1 of 2 answered in ", said, "(0.0 MiB live, 40.0 MiB claimed)")
        buffer.free()
