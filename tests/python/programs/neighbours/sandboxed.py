"""Neighbours where others are on the machine, the system refuses calls, or few descriptors are left.

Whoever cannot be asked is not taken for nobody: nothing is granted that others may have claimed. The device has 64 MiB.
"""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import gpupool
from errors import assert_says, raised
from neighbour_work import cache, claim, is_granted, others, release
from other_process import MIB, other_process
from sandbox import ANOTHER_USER, descriptors_left, limit_descriptors, many_that_listen, refuse
from waiting import wait_until

FOLDER = Path(os.environ["GPUPOOL_NEIGHBOURS"])
DEVICE = 64 * MIB


def named() -> list[str]:
    return [each.name for each in others()]


# Names in a directory that others may enter.


def names_of_another_user_hide_nobody() -> None:
    limit_descriptors(256)
    with other_process() as other, many_that_listen(1500, ANOTHER_USER):
        other.do(gpupool.set_neighbour, "real")
        other.call(claim, 40 * MIB)
        assert named() == ["real"]
        assert gpupool.available_memory() == DEVICE - 40 * MIB
        assert not is_granted(30 * MIB)


def many_of_ones_own_that_never_answer_hide_nobody() -> None:
    limit_descriptors(64)
    with other_process() as other, many_that_listen(60, os.geteuid()):
        other.do(gpupool.set_neighbour, "real")
        assert named() == ["real"]


def what_is_no_socket_is_left_alone() -> None:
    gpupool.set_neighbour()
    prefix = f"gpupool-neighbour-{os.geteuid()}-"
    os.mkfifo(FOLDER / f"{prefix}fifo")
    (FOLDER / f"{prefix}file").touch()
    (FOLDER / f"{prefix}folder").mkdir()
    (FOLDER / f"{prefix}link").symlink_to("/dev/zero")
    assert others() == []
    assert is_granted(MIB)
    assert len(list(FOLDER.iterdir())) == 5


def a_socket_is_its_users_alone() -> None:
    os.umask(0)
    gpupool.set_neighbour()
    (path,) = FOLDER.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def one_whose_socket_was_removed_is_found_again() -> None:
    with other_process() as other:
        other.call(claim, 40 * MIB)
        (path,) = FOLDER.iterdir()
        path.unlink()
        # With its next question.
        other.do(gpupool.neighbours)
        assert len(others()) == 1
        assert not is_granted(30 * MIB)


def one_that_asks_nobody_is_found_again() -> None:
    with other_process() as other:
        other.call(claim, 40 * MIB)
        (path,) = FOLDER.iterdir()
        path.unlink()
        wait_until(lambda: len(others()) == 1, "the other process listens again")
        assert not is_granted(30 * MIB)


def one_whose_name_another_one_took_is_found_again() -> None:
    with other_process() as other:
        other.call(claim, 40 * MIB)
        (path,) = FOLDER.iterdir()
        path.unlink()
        os.chdir(FOLDER)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as taken:
            taken.bind(path.name)
            other.do(gpupool.neighbours)
        assert len(others()) == 1


# Descriptors.


def nothing_is_granted_for_want_of_descriptors() -> None:
    gpupool.set_neighbour()
    with other_process() as other:
        other.call(claim, 40 * MIB)
        limit_descriptors(128)
        for left in range(8):
            with descriptors_left(left):
                assert not is_granted(30 * MIB), f"granted with {left} descriptors left"
        with descriptors_left(1):
            for call in (gpupool.neighbours, gpupool.available_memory, lambda: gpupool.claim(1)):
                assert_says(raised(gpupool.Unavailable, call), "ulimit -n")


def one_without_descriptors_tells_of_its_claim() -> None:
    gpupool.set_neighbour()
    with other_process() as other:
        other.call(claim, 40 * MIB)
        other.call(use_all_descriptors)
        for _ in range(5):
            assert not is_granted(30 * MIB)
        assert len(others()) == 1


def use_all_descriptors(kept: dict) -> None:
    limit_descriptors(64)
    kept["descriptors"] = descriptors_left(0)
    kept["descriptors"].__enter__()


def visitors_leave_descriptors_to_the_program() -> None:
    limit_descriptors(128)
    gpupool.set_neighbour()
    (path,) = FOLDER.iterdir()
    with other_process() as other:
        before = len(os.listdir("/proc/self/fd"))
        other.call(connect_often, str(path), 400)
        kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(128 - before - 32 - 8)]
        assert others() == []
        for descriptor in kept:
            os.close(descriptor)
        # Whoever asks now is served.
        assert len(other.do(gpupool.neighbours)) == 1


def connect_often(kept: dict, path: str, count: int) -> None:
    os.chdir(Path(path).parent)
    kept["silent"] = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
    for one in kept["silent"]:
        one.connect(Path(path).name)


# Calls that the system refuses.


def refused(call: str) -> bool:
    is_refused = refuse(call)
    if not is_refused:
        print("no seccomp")
    return is_refused


def without_pidfds_all_goes_on() -> None:
    with other_process() as one, other_process() as other:
        if not refused("pidfd_open"):
            return
        one.do(gpupool.set_neighbour, "one")
        other.call(claim, 40 * MIB)
        assert len(others()) == 2
        one.kill()
        assert len(others()) == 1
        assert not is_granted(30 * MIB)


def without_sockets_nobody_is_taken_for_nobody() -> None:
    with other_process() as other:
        other.call(claim, 40 * MIB)
        if not refused("socket"):
            return
        for call in (gpupool.neighbours, gpupool.available_memory, gpupool.set_neighbour, lambda: gpupool.claim(1)):
            assert_says(raised(gpupool.Unavailable, call), "Operation not permitted", "seccomp")


def without_credentials_nobody_is_taken_for_nobody() -> None:
    with other_process() as other:
        other.call(claim, 40 * MIB)
        if not refused("getsockopt"):
            return
        for call in (gpupool.neighbours, gpupool.available_memory, gpupool.set_neighbour, lambda: gpupool.claim(1)):
            assert_says(raised(gpupool.Unavailable, call), "Operation not permitted", "SO_PEERCRED")


def a_neighbour_that_loses_the_right_to_ask_is_granted_nothing() -> None:
    gpupool.set_neighbour()
    with other_process() as other:
        other.call(claim, 40 * MIB)
        for call in ("getsockopt", "socket"):
            if not refused(call):
                return
            assert_says(raised(gpupool.Unavailable, gpupool.claim, 30 * MIB), "seccomp")
            raised(gpupool.Unavailable, gpupool.neighbours)
        # What needs memory says why nobody was asked.
        other.call(release)
        other.call(cache, 48 * MIB)
        assert_says(raised(gpupool.OutOfMemory, gpupool.empty, 40 * MIB), "Its neighbours were not asked", "seccomp")


# Many that connect.


def claims_hold_while_many_connect() -> None:
    """Have eight processes connect to a holder in loops, while others claim."""
    with other_process() as other:
        other.call(claim, 40 * MIB)
        (path,) = FOLDER.iterdir()
        gpupool.set_neighbour()
        loop = (
            "import os, socket, sys\n"
            "os.chdir(sys.argv[1])\n"
            "while os.getppid() == int(sys.argv[3]):\n"
            "    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)\n"
            "    try:\n"
            "        one.connect(sys.argv[2])\n"
            "    except OSError:\n"
            "        pass\n"
            "    one.close()\n"
        )
        command = [sys.executable, "-S", "-c", loop, str(FOLDER), path.name, str(os.getpid())]
        looping = [subprocess.Popen(command) for _ in range(8)]
        try:
            granted = [is_granted(30 * MIB) for _ in range(6)]
        finally:
            for process in looping:
                process.kill()
                process.wait()
        assert not any(granted), f"granted twice, {granted.count(True)} times of {len(granted)}"
        assert other.of("claim", "left") == 40 * MIB
        other.call(release)
        assert is_granted(30 * MIB)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
