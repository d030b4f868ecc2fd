"""Neighbours know what the others hold as long as these live, wherever they end."""

import contextlib
import ctypes
import os
import signal
import socket
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import gpupool
from c_table import function
from errors import assert_says, raised
from neighbour_work import cache, claim, hold_discardable, offer, others, request, reserved
from other_process import MIB, do, fork_one_that_stays, other_process

# From Python 3.12 on it warns of a fork where gpupool has a thread, which is what is tried here.
warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)

DEVICE = 64 * MIB


class PoolOptions(ctypes.Structure):
    """`gpupool_pool_options` of gpupool.h, up to the name."""

    _fields_ = (
        ("size", ctypes.c_uint64),
        ("for_graphs", ctypes.c_int),
        ("use_on_oom", ctypes.c_int),
        ("no_split", ctypes.c_int),
        ("name", ctypes.c_char_p),
    )


def who_only_watches_is_no_neighbour() -> None:
    threads = len(os.listdir("/proc/self/task"))
    assert gpupool.neighbours() == []
    with other_process() as other:
        assert other.do(names) == []
        other.do(gpupool.set_neighbour, "server")
        other.call(cache, 8 * MIB)
        assert [(each.name, each.reserved_bytes) for each in others()] == [("server", 8 * MIB)]
        assert gpupool.available_memory() == DEVICE
        assert other.do(names) == ["server, itself"]
        # Nobody listens here, and nothing runs for that.
        assert len(os.listdir("/proc/self/task")) == threads
        assert len(list(Path(os.environ["GPUPOOL_NEIGHBOURS"]).iterdir())) == 1
        # It has the device's memory, and with the variable is a neighbour from then on.
        gpupool.empty(1).free()
        assert [each.is_self for each in gpupool.neighbours()].count(True) == 1
        assert len(other.do(names)) == 2


def names() -> list[str]:
    return [each.name + ", itself" * each.is_self for each in gpupool.neighbours()]


def what_each_holds_is_told() -> None:
    gpupool.set_neighbour()
    with other_process() as other:
        other.do(gpupool.set_neighbour, "server", 8 * MIB, 50 * MIB, -3)
        other.call(offer, 8 * MIB)
        other.call(keep_pool)
        other.call(hold_discardable, 6 * MIB, 1)
        other.call(keep_pool)
        other.call(cache, 10 * MIB)
        (it,) = others()
        assert (it.pid, it.name, it.device) == (other.process.pid, "server", 0)
        assert (it.guarantee, it.most, it.priority) == (8 * MIB, 50 * MIB, -3)
        assert (it.reserved_bytes, it.live_bytes, it.free_bytes) == (24 * MIB, 14 * MIB, 10 * MIB)
        assert (it.discardable_bytes, it.offered_bytes, it.asleep_bytes) == (4 * MIB, 8 * MIB, 0)
        # It would give all but what is guaranteed and what is pinned.
        assert gpupool.available_memory() == DEVICE - 24 * MIB + 16 * MIB
        other.call(claim, 16 * MIB)
        # Its pools stay awake.
        assert [(each.claimed_bytes, each.offered_bytes) for each in others()] == [(16 * MIB, 0)]
        assert gpupool.available_memory() == DEVICE - 24 * MIB + 14 * MIB - 16 * MIB
        (this,) = [each for each in gpupool.neighbours() if each.is_self]
        assert this.pid == os.getpid()
        assert this.reserved_bytes == 0
        assert repr(it).startswith(f'<gpupool.typing.Neighbour {it.pid} "server", device=0 (simulated)')


def pools_are_told_to_who_asks_for_them() -> None:
    gpupool.set_neighbour()
    with other_process() as other:
        other.do(gpupool.set_neighbour)
        # The default pool, one that sleeps, one with a name, and one that has nothing.
        other.call(cache, 6 * MIB)
        other.call(sleeping, 8 * MIB)
        other.call(named, "é" * 40, 2 * MIB)
        other.call(cache, 0, "private")
        assert [each.pools for each in gpupool.neighbours()] == [None, None]
        (it,) = others(pools=True)
        pools = it.pools or []
        held = [(each.reserved_bytes, each.live_bytes, each.free_bytes, each.asleep_bytes) for each in pools]
        sizes = [(0, 8, 0, 8), (6, 0, 6, 0), (2, 2, 0, 0), (0, 0, 0, 0)]
        assert held == [tuple(size * MIB for size in each) for each in sizes], pools
        # A name is cut between characters.
        assert [each.given_name for each in pools] == [None, None, "é" * 32, None]
        assert pools[1].id == (0, 0)
        assert len({each.id for each in pools}) == 4
        begin = f"<gpupool.typing.NeighbourPool {pools[2].id}"
        assert repr(pools[2]) == f'{begin} "{"é" * 32}", reserved_bytes=2097152, live_bytes=2097152>'
        (this,) = [each for each in gpupool.neighbours(pools=True) if each.is_self]
        assert this.pools == []
        with gpupool.MemPool(reserve=4 * MIB) as pool:
            (this,) = [each for each in gpupool.neighbours(pools=True) if each.is_self]
            assert [each.reserved_bytes for each in this.pools or [] if each.id == pool.id] == [4 * MIB]


def sleeping(kept: dict, nbytes: int) -> None:
    offer(kept, nbytes)
    kept["pool"].sleep()
    kept["sleeping"] = kept.pop("pool"), kept.pop("buffer")


def named(kept: dict, name: str, nbytes: int) -> None:
    kept["named"] = pool_of_c(name)
    address = ctypes.c_uint64()
    ticket, size = ctypes.c_uint64(function("ticket", ctypes.c_uint64)()), ctypes.c_uint64(nbytes)
    assert function("pool_allocate")(kept["named"], ticket, size, None, ctypes.byref(address)) == 0


def pool_of_c(name: str) -> ctypes.c_void_p:
    """Make a pool with a name, as frameworks do by C."""
    pool, options = ctypes.c_void_p(), PoolOptions(size=ctypes.sizeof(PoolOptions), name=name.encode())
    assert function("pool_create")(0, ctypes.byref(options), ctypes.byref(pool)) == 0
    return pool


def keep_pool(kept: dict) -> None:
    kept.setdefault("pools", []).append((kept.pop("pool"), kept.pop("buffer", None), kept.pop("range", None)))


def take(kept: dict, nbytes: int) -> int:
    """Take memory, and return what is left of the claim."""
    kept["taken"] = gpupool.empty(nbytes)
    return kept["claim"].left


def drop(kept: dict, for_the_driver: bool = True) -> int:
    kept.pop("taken").free()
    if for_the_driver:
        gpupool.empty_cache()
    return kept["claim"].left


def what_is_claimed_is_not_available_to_others() -> None:
    with other_process() as other:
        assert other.call(claim, 40 * MIB) == 40 * MIB
        assert gpupool.available_memory() == DEVICE - 40 * MIB
        error = raised(gpupool.OutOfMemory, gpupool.claim, 30 * MIB)
        assert_says(error, "tried to claim 30.0 MiB", "could have 24.0 MiB", "claim less")
        assert error.requested_bytes == 30 * MIB
        with gpupool.claim(24 * MIB) as held:
            assert held.left == held.nbytes == 24 * MIB
            raised(gpupool.OutOfMemory, gpupool.claim, 1)
        # What is taken of it counts once.
        assert other.call(take, 16 * MIB) == 24 * MIB
        assert gpupool.available_memory() == DEVICE - 40 * MIB
        assert other.call(drop) == 40 * MIB
        # As it does where it is free in the other's cache.
        assert other.call(take, 16 * MIB) == 24 * MIB
        assert other.call(drop, False) == 40 * MIB
        assert gpupool.available_memory() == DEVICE - 40 * MIB
        other.kill()
        assert gpupool.available_memory() == DEVICE


def two_that_ask_each_other_go_on() -> None:
    with other_process() as one, other_process() as other:
        for _ in range(20):
            for process in (one, other):
                process.begin(cache, 28 * MIB)
            assert [one.end(), other.end()] == [28 * MIB, 28 * MIB]
            for process in (one, other):
                process.begin(do, request, 30 * MIB)
            assert any([one.end(), other.end()])
            for process in (one, other):
                process.do(gpupool.empty_cache)


def a_child_of_a_neighbour_is_none() -> None:
    with an_ended_one(fork_one_that_stays) as connect:
        raised(ConnectionRefusedError, connect)


def a_child_that_keeps_a_neighbours_socket_is_none() -> None:
    with an_ended_one(fork_without_handlers) as connect:
        connect()


def fork_without_handlers(kept: dict) -> int:
    """Fork as libraries may that know nothing of who is to be told."""
    return fork_one_that_stays(kept, runs_handlers=False)


@contextlib.contextmanager
def an_ended_one(fork: Callable[[dict], int]) -> Iterator[Callable[[], None]]:
    """Kill a neighbour that has forked a child, and give what connects to its socket; then nobody finds it."""
    os.chdir(os.environ["GPUPOOL_NEIGHBOURS"])
    with other_process() as other, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        other.do(gpupool.set_neighbour, "parent")
        other.call(cache, 10 * MIB)
        child = other.call(fork)
        assert [each.name for each in others()] == ["parent"]
        other.kill()
        try:
            (name,) = os.listdir()
            yield lambda: connection.connect(name)
            assert others() == []
            # It is asked no more, as questions to nobody would fill its socket.
            assert os.listdir() == []
        finally:
            os.kill(child, signal.SIGKILL)


def sockets_alone_are_in_the_directory() -> None:
    folder = Path(os.environ["GPUPOOL_NEIGHBOURS"])
    with other_process() as one, other_process() as other:
        one.do(gpupool.set_neighbour)
        other.do(gpupool.set_neighbour)
        assert len(others()) == 2
        assert all(stat.S_ISSOCK(each.stat().st_mode) for each in folder.iterdir())
        one.kill()
        assert len(list(folder.iterdir())) == 2
        # Who only watches removes it as well.
        assert len(others()) == 1
        assert len(list(folder.iterdir())) == 1


def what_the_environment_says_holds_until_a_call() -> None:
    assert gpupool.neighbours() == []
    gpupool.empty(1).free()
    (this,) = gpupool.neighbours()
    assert (this.name, this.guarantee, this.most, this.priority) == ("by name", 3 * MIB, 5 * MIB, -7)
    gpupool.set_neighbour(guarantee=MIB)
    (this,) = gpupool.neighbours()
    assert (this.name, this.guarantee, this.most, this.priority) == ("by name", MIB, None, 0)
    gpupool.set_neighbour("another\nname")
    (this,) = gpupool.neighbours()
    assert this.name == "another\nname"


def a_limit_of_the_system_counts_as_the_devices_size() -> None:
    limit = 40 * MIB
    assert gpupool.available_memory() == limit
    del os.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
    with other_process() as free:
        # Memory that others give does not help against a limit of this process alone.
        free.call(cache, 48 * MIB)
        os.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "1=3G,0=40MB"
        with other_process() as other:
            other.call(cache, 8 * MIB)
            assert gpupool.available_memory() == limit
            assert {each.pid: each.system_limit for each in others()} == {
                free.process.pid: None,
                other.process.pid: limit,
            }
            assert other.do(gpupool.available_memory) == limit
            assert free.do(gpupool.available_memory) == DEVICE
    assert_says(raised(gpupool.OutOfMemory, gpupool.claim, limit + 1), "could have 40.0 MiB")


def wrong_settings_are_refused() -> None:
    assert_says(raised(gpupool.InvalidValue, gpupool.set_neighbour, guarantee=2, most=1), "raise the most")
    assert_says(raised(gpupool.InvalidValue, gpupool.set_neighbour, priority=2**31), "priority is 2147483648")
    raised(gpupool.InvalidValue, gpupool.set_neighbour, device=gpupool.device_count())
    raised(gpupool.InvalidValue, gpupool.claim, -1)
    assert_says(raised(gpupool.InvalidValue, gpupool.MemPool, wakes_on_use=True), "sleeps_for_others")
    assert_says(raised(gpupool.Unavailable, gpupool.MemPool, no_split=True, sleeps_for_others=True), "cannot sleep")
    with gpupool.claim(DEVICE) as claim:
        assert_says(raised(gpupool.OutOfMemory, gpupool.claim, 1), "could have 0")
    assert claim.left == 0
    assert repr(claim) == f"<gpupool.typing.MemoryClaim nbytes={DEVICE}, device=0 (simulated), over>"
    claim.release()
    assert gpupool.available_memory() == DEVICE
    assert reserved() == 0
