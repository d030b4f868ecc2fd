"""Numba's arrays in gpupool's memory. Numba chooses its memory manager once, so each test is a process of its own."""

import importlib
import re

import pytest
from gpu_helpers import PROGRAMS, import_or_skip, run_program, run_python
from processes import functions_of, start_python
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


CASES = [
    (program, what)
    for program in ("arrays", "pinned", "beside_cupy")
    for what in functions_of(PROGRAMS / f"numba/{program}.py")
]


@pytest.mark.parametrize(("program", "what"), CASES)
@pytest.mark.usefixtures("compiles")
def test_arrays(program, what):
    run_program(f"numba/{program}.py", what)


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
