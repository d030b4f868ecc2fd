"""Numba's arrays in gpupool's memory. Numba chooses its memory manager once, so each test is a process of its own."""

import importlib
import re

import pytest
from gpu_helpers import import_or_skip, run_program, run_python
from processes import start_python
from waiting import PATIENCE


@pytest.fixture
def compiles():
    """Skip where Numba can compile no kernel."""
    import_or_skip("numba.cuda")
    try:
        importlib.import_module("numba.cuda.np.arrayobj")
    except AttributeError as error:
        # numba-cuda 0.30 and NumPy 2.5: no kernel at all can be compiled.
        pytest.skip(f"this Numba and this NumPy do not go together: {error}")


@pytest.fixture
def run(compiles):
    """Run a program."""
    return lambda name, what: run_program(f"numba/{name}", what)


def test_kernels_work_on_one_thread_and_on_sixteen(run):
    run("arrays.py", "serve_one_thread_and_sixteen")


def test_an_array_may_die_while_a_kernel_of_any_stream_uses_it(run):
    run("arrays.py", "may_die_while_a_kernel_of_any_stream_uses_them")


def test_out_of_memory_is_numbas_error(run):
    run("arrays.py", "that_died_go_before_memory_runs_out")


@pytest.mark.parametrize(
    "what",
    [
        "serve_one_thread_and_sixteen",
        "are_used_by_kernels_in_place",
        "may_die_while_a_kernel_uses_them",
        "are_not_pinned_twice",
    ],
)
def test_pinned_arrays(run, what):
    run("pinned.py", what)


def test_frameworks_share_a_pool(run):
    run("beside_cupy.py", "in_one_pool")


def test_a_graphs_arrays_are_its_own(run):
    run("beside_cupy.py", "in_a_graph_of_their_own")


def test_arrays_go_to_other_processes(run):
    run("arrays.py", "go_to_other_processes")


@pytest.mark.parametrize(
    "case",
    ["test_ipc.TestIpcMemory", "test_ipc.TestIpcStaged", "test_context_stack.Test3rdPartyContext"],
)
def test_numbas_own(case):
    import_or_skip("numba.cuda")
    import_or_skip("filecheck")
    folder = "cudadrv" if "context" in case else "cudapy"
    command = ("-m", "unittest", f"numba.cuda.tests.{folder}.{case}")
    done = start_python(*command, timeout=110 * PATIENCE, NUMBA_CUDA_MEMORY_MANAGER="gpupool.numba")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@pytest.mark.thorough
@pytest.mark.parametrize("order", ["gpupool, numba, torch", "torch, numba, gpupool", "numba, gpupool, torch"])
def test_exits_cleanly_with_live_arrays(order):
    import_or_skip("numba.cuda")
    import_or_skip("torch")
    run_program("ends/with_frameworks.py", *order.split(", "), "numba_arrays")


@pytest.mark.usefixtures("compiles")
def test_the_example_gives_right_results(examples):
    output = run_python(str(examples / "numba_kernel.py"))
    errors = re.search(r"^largest error +(\S+) +(\S+)$", output, re.MULTILINE)
    assert errors, output
    assert max(map(float, errors.groups())) < 1e-5, output
