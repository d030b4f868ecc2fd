"""A process that has no memory left is given some by its neighbours. The device has 64 MiB for all of them."""

import logging
from dataclasses import asdict

import gpupool
from errors import assert_says, raised
from neighbour_work import cache, discarded, held, hold_discardable, offer, others, reserved
from other_process import MIB, logged, other_process, stopped, values, wait_until_free
from waiting import wait_until


def fill_up(nbytes: int) -> gpupool.DeviceBuffer:
    buffer = gpupool.empty(nbytes)
    buffer.fill(7)
    return buffer


def what_is_asked_and_given_is_counted() -> None:
    with other_process() as other:
        other.call(cache, 48 * MIB)
        fill_up(4 * MIB)
        assert (counts()["asked_neighbours"], other.do(counts)["asked_by_neighbours"]) == (0, 0)
        fill_up(40 * MIB)
        here, there = counts(), other.do(counts)
        assert (here["asked_neighbours"], there["asked_by_neighbours"]) == (1, 1)
        assert here["received_bytes"] == there["given_bytes"] == 24 * MIB
        assert here["asking_seconds"] > 0 == there["asking_seconds"]
        text = gpupool.prometheus.text()
        assert 'gpupool_device_asked_neighbours_total{device="0"} 1.0\n' in text
        assert "from neighbours" in str(gpupool.memory_summary())
        of_this, of_other = gpupool.info(), other.do(info)
        device = of_this.devices[0]
        named = ("asked_neighbours", "received_bytes", "asking_seconds", "asked_by_neighbours", "given_bytes")
        assert asdict(device.neighbours) == {name: here[name] for name in named}
        assert "     asked its neighbours once: 24.0 MiB came in " in str(of_this)
        assert "was asked" not in str(of_this)
        assert "     was asked by its neighbours once: 24.0 MiB given\n" in of_other


def info() -> str:
    return str(gpupool.info())


def counts() -> dict[str, float]:
    return gpupool.memory_stats().as_dict()


def nothing_of_a_private_pool() -> None:
    with other_process() as other:
        assert other.call(cache, 48 * MIB, "private") == 48 * MIB
        raised(gpupool.OutOfMemory, fill_up, 40 * MIB)
        assert other.do(reserved) == 48 * MIB


def nobody_is_asked_by_one_that_is_no_neighbour() -> None:
    with other_process() as other:
        other.do(gpupool.set_neighbour)
        assert other.call(cache, 48 * MIB) == 48 * MIB
        error = raised(gpupool.OutOfMemory, fill_up, 40 * MIB)
        assert "neighbours" not in str(error), error
        gpupool.set_neighbour()
        fill_up(40 * MIB)


def nothing_below_a_guarantee() -> None:
    with other_process() as other:
        other.do(gpupool.set_neighbour, "server", 32 * MIB)
        assert other.call(cache, 48 * MIB) == 48 * MIB
        error = raised(gpupool.OutOfMemory, fill_up, 40 * MIB)
        pid = other.process.pid
        assert_says(error, f'process {pid} "server" ', "guaranteed", "Held by its neighbours")
        fill_up(32 * MIB)
        assert other.do(reserved) == 32 * MIB


def all_the_same_where_one_is_not_enough() -> None:
    with other_process() as one, other_process() as other:
        one.call(cache, 24 * MIB)
        other.call(cache, 24 * MIB)
        fill_up(60 * MIB)
        assert one.do(reserved) + other.do(reserved) <= 4 * MIB


def one_above_its_most_first() -> None:
    with other_process() as low, other_process() as high:
        low.do(gpupool.set_neighbour, "low", 0, None, -1)
        high.do(gpupool.set_neighbour, "high", 0, 8 * MIB, 1)
        low.call(cache, 24 * MIB)
        high.call(cache, 24 * MIB)
        fill_up(20 * MIB)
        assert low.do(reserved) == 24 * MIB
        # It goes on giving back what it has free beyond that, unasked.
        wait_until(lambda: high.do(reserved) <= 8 * MIB, "the one above its most has given back")


def discardable_pages_after_free_memory() -> None:
    with other_process() as one, other_process() as other:
        one.call(hold_discardable, 24 * MIB)
        other.call(cache, 24 * MIB)
        buffer = fill_up(32 * MIB)
        assert one.call(discarded) == []
        assert (one.do(reserved), other.do(reserved)) == (24 * MIB, 8 * MIB)
        buffer.free()
        gpupool.empty_cache()
        fill_up(60 * MIB)
        # Told by the range's next call, on the program's own thread.
        told = one.call(discarded)
        assert told == list(range(12))[: len(told)]
        assert len(told) * 2 * MIB >= 20 * MIB


def large_pages_under_a_guarantee_stay() -> None:
    with other_process() as other:
        other.do(gpupool.set_neighbour, "server", 36 * MIB)
        other.call(hold_discardable, 48 * MIB, 0, 8 * MIB)
        raised(gpupool.OutOfMemory, fill_up, 28 * MIB)
        # One page of 8 MiB is above the guarantee, a second one is partly below.
        assert other.do(reserved) == 40 * MIB


def idle_handles_of_another() -> None:
    with other_process() as other:
        other.do(leave_handles)
        assert other.do(reserved) == 0
        before = gpupool.available_memory()
        assert before < 64 * MIB
        other.call(cache, 2 * MIB)
        fill_up(64 * MIB)


def leave_handles() -> None:
    """Have idle handles, which take memory of the device."""
    gpupool._native.simulate_costly_handles(0.0, 8 * MIB)
    with gpupool.simulated.lease(), gpupool.simulated.lease():
        pass


def a_handle_is_made_of_what_others_give() -> None:
    with other_process() as other:
        gpupool._native.simulate_costly_handles(0.0, 24 * MIB)
        other.call(cache, 60 * MIB)
        assert gpupool.simulated.handle() != 0


def pinned_pages_stay() -> None:
    with other_process() as other:
        other.call(hold_discardable, 48 * MIB, 24)
        raised(gpupool.OutOfMemory, fill_up, 40 * MIB)
        assert other.do(reserved) == 48 * MIB


def a_pool_sleeps_and_wakes_whole() -> None:
    with other_process() as other:
        other.call(offer, 40 * MIB)
        buffer = fill_up(48 * MIB)
        assert other.of("pool", "is_asleep")
        other.refused(gpupool.Asleep, held, 40 * MIB)
        buffer.free()
        gpupool.empty_cache()
        other.call(held, 40 * MIB, True)


def a_pool_wakes_by_its_next_request() -> None:
    with other_process() as other:
        other.call(offer, 40 * MIB, True)
        buffer = fill_up(48 * MIB)
        assert other.of("pool", "is_asleep")
        # Where it finds no memory it stays asleep.
        assert_says(other.refused(gpupool.OutOfMemory, held, 40 * MIB), "stays asleep")
        buffer.free()
        # What is free here is asked for.
        other.call(held, 40 * MIB)
        assert gpupool.memory_stats().reserved_bytes <= 24 * MIB


def a_pool_wakes_by_a_copy_or_a_commit() -> None:
    with other_process() as other:
        for use in (copy, fill, commit):
            other.call(offer, 40 * MIB, True)
            other.call(add_range)
            buffer = fill_up(48 * MIB)
            assert other.of("pool", "is_asleep")
            other.refused(gpupool.OutOfMemory, use)
            buffer.free()
            gpupool.empty_cache()
            other.call(use)
            assert not other.of("pool", "is_asleep")
            other.call(forget)


def forget(kept: dict) -> None:
    kept.clear()
    gpupool.empty_cache()


def add_range(kept: dict) -> None:
    kept["range"] = kept["pool"].reserve_range(4 * MIB)
    kept["range"].commit(0, 2 * MIB, kept["stream"], fill=5)
    kept["stream"].synchronize()


def copy(kept: dict) -> None:
    assert values(kept["buffer"]) == {7}


def fill(kept: dict) -> None:
    kept["buffer"].fill(8, kept["stream"])
    assert values(kept["buffer"]) == {8}


def commit(kept: dict) -> None:
    kept["range"].commit(2 * MIB, 2 * MIB, kept["stream"])
    assert kept["range"].committed_bytes == 4 * MIB


def stays_awake(*, during: str, until: str) -> None:
    """Check that an offered pool is not taken while something of it is under way, and is once that has ended."""
    with other_process() as other:
        other.call(offer, 40 * MIB, False, during)
        raised(gpupool.OutOfMemory, fill_up, 48 * MIB)
        assert not other.of("pool", "is_asleep")
        other.call(offer, 0, False, until)
        # On a busy machine what is given may come after the time for asking.
        wait_until_free(48 * MIB)


def a_pool_in_use_stays_awake() -> None:
    stays_awake(during="scope", until="leave")


def a_pool_at_work_stays_awake() -> None:
    stays_awake(during="work", until="done")


def a_pool_beside_a_capture_stays_awake() -> None:
    # Its end shows that the capture is whole.
    stays_awake(during="capture", until="end")


def a_pool_under_a_guarantee_stays_awake() -> None:
    with other_process() as other:
        other.do(gpupool.set_neighbour, "server", 8 * MIB)
        other.call(offer, 40 * MIB)
        raised(gpupool.OutOfMemory, fill_up, 48 * MIB)
        assert not other.of("pool", "is_asleep")


def a_stopped_one_is_passed_by() -> None:
    with other_process() as one, other_process() as other:
        one.call(cache, 20 * MIB)
        other.call(cache, 20 * MIB)
        with stopped(one.process.pid):
            assert [each.pid for each in others()] == [other.process.pid]
            kept = fill_up(40 * MIB)
            raised(gpupool.OutOfMemory, fill_up, 20 * MIB)
        kept.free()
        assert one.do(reserved) == 20 * MIB


def what_is_asked_is_logged() -> None:
    records = logged("gpupool.memory", logging.DEBUG)
    with other_process() as other:
        other.do(gpupool.set_neighbour, "server")
        other.call(cache, 48 * MIB)
        fill_up(40 * MIB)
        pid = other.process.pid
        asked = "asked 1 neighbours for 24.0 MiB; they gave 24.0 MiB in"
        wait_until(lambda: any(asked in text for text in records), f"the log says: {asked}")
        wait_until(
            lambda: any(f'process {pid} "server" gave 24.0 MiB of free memory' in text for text in records),
            "the log says who gave it",
        )
