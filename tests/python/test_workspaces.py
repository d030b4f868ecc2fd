"""cuBLAS's workspaces, on a double of the library and of the driver: one for each stream, one for each graph."""

import pytest
from abi import LIBRARIES, build_library
from machines import Machine

PRELUDE = """
pool, at = gpupool.cublas, ctypes.c_void_p
library = ctypes.CDLL(pool.path)
library.double_workspace_of.restype = ctypes.c_void_p

def workspace(stream):
    return library.double_workspace_of(at(pool.handle(stream))) or 0

def in_capture(stream, function, *arguments):
    driver.double_set_capture(at(stream.ptr), 1)
    try:
        return function(*arguments)
    finally:
        driver.double_set_capture(at(stream.ptr), 0)

def mib():
    return pool.stats().workspace_bytes >> 20

one, two = gpupool.Stream(0), gpupool.Stream(0)
"""


@pytest.fixture
def machine(tmp_path, run_bare_python):
    machine = Machine("cuda", tmp_path, run_bare_python)
    machine.build()
    machine.install("cublaslt")
    machine.install("cublas")
    return machine


def test_every_stream_and_every_graph_has_one(machine):
    machine.run(
        PRELUDE
        + """
first, second = workspace(one), workspace(two)
assert first and second and first != second
assert [workspace(one), workspace(two), workspace(one)] == [first, second, first]
graphs = [in_capture(one, workspace, one) for _ in range(2)]
assert len({first, second, *graphs}) == 4
assert workspace(one) == first and mib() == 4 * 32
assert gpupool.handle_stats()["cublas"].workspace_bytes == 4 * 32 << 20

# A graph that is gone leaves its workspace to the next.
driver.double_destroy_graph(1)
assert in_capture(one, workspace, one) == graphs[0] and mib() == 4 * 32
assert calls("cuMemAlloc_v2") == 4

# The stream set behind the pool's back, and with it the library's own workspace, as CuPy does at every call.
library.cublasSetStream_v2(at(pool.handle(one)), at(two.ptr))
assert workspace(one) == first

# Trimming leaves those of living graphs and of handles in use.
assert in_thread(workspace, one) not in (0, first)
assert mib() == 5 * 32 and pool.trim() == 1 and mib() == 4 * 32
driver.double_destroy_graph(2)
driver.double_destroy_graph(3)
assert pool.trim() == 0 and mib() == 2 * 32
"""
    )


@pytest.mark.parametrize(
    ("config", "capability", "mib"), [(None, "9", 32), (None, "8", 4), (":4096:2:1024:8", "9", 16), (":0:0", "9", 0)]
)
def test_the_variable_or_the_device_says_how_large(machine, config, capability, mib):
    machine.run(
        PRELUDE + f"assert (workspace(one) != 0, mib()) == ({mib > 0}, {mib})",
        CUBLAS_WORKSPACE_CONFIG=config,
        FAKE_CAPABILITY=capability,
    )


def test_a_variable_that_cannot_be_read_is_left_to_the_library(machine):
    machine.run(PRELUDE + "assert (workspace(one), mib()) == (0, 0)", CUBLAS_WORKSPACE_CONFIG="4 MiB")


@pytest.mark.parametrize("call", ["cuStreamGetCaptureInfo_v3", "cuUserObjectCreate", "cuGraphRetainUserObject"])
def test_a_graph_that_can_keep_none_uses_the_library_s_own(machine, call):
    machine.run(
        PRELUDE
        + f"""
fail("{call}=1")
first = workspace(one)
assert first and in_capture(one, workspace, one) == 0 and workspace(one) == first
fail()
assert in_capture(one, workspace, one) not in (0, first)
driver.double_destroy_graph(2)
pool.trim()
assert mib() == 32
"""
    )


def test_an_old_driver_leaves_graphs_to_the_library(machine):
    machine.build("-DWITHOUT_GRAPH_OBJECTS")
    machine.run(
        PRELUDE
        + """
first = workspace(one)
assert first and in_capture(one, workspace, one) == 0 and workspace(one) == first
"""
    )


def test_without_memory_the_library_s_own_is_used(machine):
    machine.run(PRELUDE + 'fail("cuMemAlloc_v2=2")\nassert (workspace(one), mib()) == (0, 0)')


def test_a_version_that_takes_none_keeps_its_own(machine):
    build_library("cublas", machine.site_packages / LIBRARIES["cublas"].file, without="SET_WORKSPACE")
    machine.run(PRELUDE + "assert (workspace(one), mib()) == (0, 0)")


def test_a_refusal_names_the_function(machine):
    machine.run(
        PRELUDE
        + """
fail("cublasSetWorkspace_v2=7")
error = error_of(pool.handle, one)
assert "cublasSetWorkspace_v2" in error and "CUBLAS_STATUS_INVALID_VALUE" in error, error
fail()
assert workspace(one) != 0
"""
    )
