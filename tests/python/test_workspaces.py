"""cuBLAS's workspaces, on a double of the library and of the driver: one for each stream, one for each graph."""

import pytest
from abi import build_library
from forks import Machine
from programs.shared.libraries import LIBRARIES


@pytest.fixture
def machine(tmp_path):
    """Return a machine with cuBLAS."""
    machine = Machine("cuda", tmp_path)
    machine.install("cublaslt")
    machine.install("cublas")
    return machine


@pytest.fixture
def check(machine):
    """Run one of the programs about workspaces there."""
    return lambda *arguments, **variables: machine.run("platforms/workspaces.py", *arguments, **variables)


def test_every_stream_and_every_graph_has_one(check):
    check("every_stream_and_every_graph_has_one")


@pytest.mark.parametrize(
    ("config", "capability", "mib"), [(None, "9", 32), (None, "8", 4), (":4096:2:1024:8", "9", 16), (":0:0", "9", 0)]
)
def test_the_variable_or_the_device_says_how_large(check, config, capability, mib):
    check("one_is_this_large", mib, CUBLAS_WORKSPACE_CONFIG=config, FAKE_CAPABILITY=capability)


def test_a_variable_that_cannot_be_read_is_left_to_the_library(check):
    check("one_is_this_large", 0, CUBLAS_WORKSPACE_CONFIG="4 MiB")


@pytest.mark.parametrize("call", ["cuStreamGetCaptureInfo_v3", "cuUserObjectCreate", "cuGraphRetainUserObject"])
def test_a_graph_that_can_keep_none_uses_the_library_s_own(check, call):
    check("a_graph_that_can_keep_none_uses_the_library_s_own", call)


def test_an_old_driver_leaves_graphs_to_the_library(machine, check):
    machine.build("-DWITHOUT_GRAPH_OBJECTS")
    check("an_old_driver_leaves_graphs_to_the_library")


def test_without_memory_the_library_s_own_is_used(check):
    check("without_memory_the_library_s_own_is_used")


def test_a_version_that_takes_none_keeps_its_own(machine, check):
    build_library("cublas", machine.site_packages / LIBRARIES["cublas"].file, without="SET_WORKSPACE")
    check("one_is_this_large", 0)


def test_a_refusal_names_the_function(check):
    check("a_refusal_names_the_function")
