"""Neighbours that meet in the user's own directory, or cannot."""

import ctypes
import os
from pathlib import Path

import gpupool
from errors import assert_says, raised
from other_process import other_process

CLONE_NEWUSER = 0x10000000
OUTSIDE = os.geteuid()


def two_processes_meet():
    gpupool.set_neighbour("first")
    with other_process() as other:
        other.do(gpupool.set_neighbour, "second")
        assert "second" in {each.name for each in gpupool.neighbours()}
        other.leave()


def nobody_can_be_met(*words):
    for call in (gpupool.set_neighbour, gpupool.neighbours):
        assert_says(raised(gpupool.Unavailable, call), *words)


def names():
    return [each.name for each in gpupool.neighbours()]


def nobody_meets_nobody():
    """Leave for a user namespace without users: there the system reports this user and all others by one number."""
    with other_process() as other:
        if ctypes.CDLL(None).unshare(CLONE_NEWUSER) != 0:
            print("refused")
            return
        nobody = int(Path("/proc/sys/kernel/overflowuid").read_text())
        assert os.geteuid() == nobody
        gpupool.set_neighbour("inside")
        (socket,) = Path(os.environ["GPUPOOL_NEIGHBOURS"]).iterdir()
        # So that one outside finds it, which could as well be another user's.
        socket.rename(socket.with_name(socket.name.replace(f"-{nobody}-", f"-{OUTSIDE}-")))
        assert other.do(names) == [], "a process of another user is taken for one of this user's"
        other.leave()
