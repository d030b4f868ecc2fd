"""What `gpupool.info()` tells a program, and what it leaves alone."""

import ctypes
import os
import sys
from pathlib import Path

import gpupool
from forking import exit_code_of


def of_library(info, name):
    (found,) = [each for each in info.libraries if each.name == name]
    return found


def imports_and_loads_nothing():
    info = gpupool.info()
    imported = {"torch", "cupy", "rmm", "numba", "cuda", "ray", "distributed"} & sys.modules.keys()
    assert not imported, f"it imports {imported}"
    assert "libcudnn" not in Path("/proc/self/maps").read_text(), "it loads cuDNN"
    assert info.ok, f"something is wrong: {info.problems}"
    assert gpupool.handle_stats() == {}, "it made handles"
    assert gpupool.memory_stats().allocations == 0, "it allocated"
    assert "gpupool.info(smoke_test=True)" in str(info), f"it does not say how to try more: {info}"


def says_that_a_child_is_forked():
    gpupool.simulated.handle()
    child = os.fork()
    if child == 0:
        info = gpupool.info(smoke_test=True)
        assert info.process.forked, "the child is not told to be forked"
        assert not info.ok, "the child is told to be well"
        assert info.devices == [], f"the child is told of devices: {info.devices}"
        assert "forked after the GPU was first used" in str(info), f"the child is not told what is wrong: {info}"
        os._exit(0)
    assert exit_code_of(child) == 0, "the child failed"
    assert not gpupool.info().process.forked, "the parent is told to be forked"


def points_out_a_second_copy(ours, theirs):
    ctypes.CDLL(theirs)
    loaded = gpupool.info().loaded_files
    assert loaded == {"cusparse": [theirs]}, f"the process is told to have {loaded}"
    assert gpupool.cusparse.path == ours, f"gpupool has loaded {gpupool.cusparse.path}"
    info = gpupool.info()
    cusparse = of_library(info, "cusparse")
    told = cusparse.state, cusparse.version, cusparse.path, cusparse.origin
    assert told == ("loaded", "1.2.3", ours, "wheel"), f"cuSPARSE is told as {told}"
    assert cusparse.other_copies == [theirs], f"the other copies are {cusparse.other_copies}"
    assert info.ok, "a second copy is told as a failure"
    said = info.problems[0].what
    assert said.startswith(f"the process has 2 copies of libcusparse: {ours}, {theirs}"), f"it is told as: {said}"


def takes_a_link_for_no_second_copy(file, link):
    ctypes.CDLL(link)
    gpupool.cusparse.path  # noqa: B018 - which finds it
    info = gpupool.info()
    assert info.loaded_files == {"cusparse": [file]}, f"the process is told to have {info.loaded_files}"
    assert info.problems == [], f"something is wrong: {info.problems}"
    copies = of_library(info, "cusparse").other_copies
    assert copies == [], f"the other copies are {copies}"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
