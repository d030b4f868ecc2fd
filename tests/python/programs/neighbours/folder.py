"""Neighbours that meet in the user's own directory, or cannot."""

import sys

import gpupool
import neighbour_work
from errors import assert_says, raised
from other_process import other_process


def two_processes_meet():
    gpupool.set_neighbour("first")
    with other_process() as other:
        other.call(neighbour_work.say, "second")
        assert "second" in {each.name for each in gpupool.neighbours()}
        other.leave()


def nobody_can_be_met(*words):
    for call in (gpupool.set_neighbour, gpupool.neighbours):
        assert_says(raised(gpupool.Unavailable, call), *words)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
