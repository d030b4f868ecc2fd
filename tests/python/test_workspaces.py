"""cuBLAS's workspaces, on a double of the library and of the driver: one for each stream, one for each graph."""

import pytest
from abi import build_library
from programs.shared.libraries import LIBRARIES
from running import functions_of

PROGRAM = "platforms/workspaces.py"


@pytest.fixture
def machine(machine_of):
    return machine_of("cublaslt", "cublas")


@pytest.mark.parametrize("case", functions_of(PROGRAM))
def test_streams_and_graphs_have_their_own(machine, case):
    if case == "an_old_driver_leaves_graphs_to_the_library":
        machine.build("-DWITHOUT_GRAPH_OBJECTS")
    machine.run(PROGRAM, case)


@pytest.mark.parametrize(
    ("config", "capability", "mib"),
    # The last one cannot be read, and is left to the library.
    [(None, "9", 32), (None, "8", 4), (":4096:2:1024:8", "9", 16), (":0:0", "9", 0), ("4 MiB", "9", 0)],
)
def test_the_variable_or_the_device_says_how_large(machine, config, capability, mib):
    machine.run(PROGRAM, "one_is_this_large", mib, CUBLAS_WORKSPACE_CONFIG=config, FAKE_CAPABILITY=capability)


@pytest.mark.parametrize("call", ["cuStreamGetCaptureInfo_v3", "cuUserObjectCreate", "cuGraphRetainUserObject"])
def test_a_graph_that_can_keep_none_uses_the_library_s_own(machine, call):
    machine.run(PROGRAM, "a_graph_that_can_keep_none_uses_the_library_s_own", call)


def test_a_version_that_takes_none_keeps_its_own(machine):
    build_library("cublas", machine.site_packages / LIBRARIES["cublas"].file, without="SET_WORKSPACE")
    machine.run(PROGRAM, "one_is_this_large", 0)
