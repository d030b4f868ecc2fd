"""cuBLAS's workspaces: one for each stream, one for each graph, and the library's own where there can be none."""

import sys

import gpupool
from double import MIB, calls, driver, error_of, fail, set_capture
from library_double import LibraryDouble
from waiting import in_thread

library = LibraryDouble("cublas")
pool = library.pool
one, two = gpupool.Stream(0), gpupool.Stream(0)


def workspace(stream):
    """Return the workspace on a stream, 0 where it is the library's own."""
    return library.workspace_of(pool.handle(stream))


def in_capture(stream):
    """Return the workspace in a capture of the stream."""
    set_capture(stream.ptr, 1)
    try:
        return workspace(stream)
    finally:
        set_capture(stream.ptr, 0)


def assert_mib(expected):
    found = pool.stats().workspace_bytes
    assert found == expected * MIB, f"workspaces have {found / MIB} MiB, not {expected}"


def every_stream_and_every_graph_has_one():
    first, second = workspace(one), workspace(two)
    assert 0 not in (first, second), "a stream has the library's own"
    assert first != second, "two streams have the same"
    again = [workspace(one), workspace(two), workspace(one)]
    assert again == [first, second, first], "a stream's workspace changed"
    graphs = [in_capture(one) for _ in range(2)]
    assert len({first, second, *graphs}) == 4, "a graph has one that is not its own"
    assert workspace(one) == first, "a capture changed the stream's workspace"
    assert_mib(4 * 32)
    told = gpupool.handle_stats()["cublas"].workspace_bytes
    assert told == 4 * 32 * MIB, f"handle_stats tells {told} bytes"

    # A graph that is gone leaves its workspace to the next.
    driver.double_destroy_graph(1)
    assert in_capture(one) == graphs[0], "a workspace of a graph that is gone was not used again"
    assert_mib(4 * 32)
    assert calls("cuMemAlloc_v2") == 4, "another number of workspaces was allocated"

    # The stream set behind the pool's back, and with it the library's own workspace, as CuPy does at every call.
    library.set_stream(pool.handle(one), two.ptr)
    assert workspace(one) == first, "after the library's own workspace the stream's is not set again"

    # Trimming leaves those of living graphs and of handles in use.
    assert in_thread(workspace, one) not in (0, first), "two threads have the same"
    assert_mib(5 * 32)
    assert pool.trim() == 1, "trim did not destroy the one idle handle"
    assert_mib(4 * 32)
    driver.double_destroy_graph(2)
    driver.double_destroy_graph(3)
    assert pool.trim() == 0, "trim destroyed handles in use"
    assert_mib(2 * 32)


def one_is_this_large(mib):
    """Compare its size; none at all is the library's own."""
    assert (workspace(one) != 0) == (int(mib) > 0), "there is one, or none, though the other is asked for"
    assert_mib(int(mib))


def a_graph_that_can_keep_none_uses_the_library_s_own(refused):
    fail(f"{refused}=1")
    first = workspace(one)
    assert first, "the stream has the library's own"
    assert in_capture(one) == 0, "a graph that cannot keep one has one"
    assert workspace(one) == first, "a capture changed the stream's workspace"
    fail()
    assert in_capture(one) not in (0, first), "a graph that can keep one has none of its own"
    driver.double_destroy_graph(2)
    pool.trim()
    assert_mib(32)


def an_old_driver_leaves_graphs_to_the_library():
    first = workspace(one)
    assert first, "the stream has the library's own"
    assert in_capture(one) == 0, "a graph has one, though the driver cannot tell when it is gone"
    assert workspace(one) == first, "a capture changed the stream's workspace"


def without_memory_the_library_s_own_is_used():
    fail("cuMemAlloc_v2=2")
    one_is_this_large(0)


def a_refusal_names_the_function():
    fail("cublasSetWorkspace_v2=7")
    error = error_of(pool.handle, one)
    assert "cublasSetWorkspace_v2" in error, f"the function is not named: {error}"
    assert "CUBLAS_STATUS_INVALID_VALUE" in error, f"the status is not named: {error}"
    fail()
    assert workspace(one) != 0, "after a refusal there is none"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
