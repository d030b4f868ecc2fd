"""Tests that need a GPU and CuPy; without them the whole folder is skipped."""

import os
import sys
import warnings
from pathlib import Path

import gpupool
import pytest

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
sys.path[:0] = [str(HERE), str(EXAMPLES)]


@pytest.fixture(scope="session", autouse=True)
def gpu():
    """Skip every test here if there is no GPU."""
    # Imported late, since it is found through the path above.
    from gpu_helpers import cupy

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # That there is no GPU.
            runtime = gpupool.runtime()
    except gpupool.Error as error:
        pytest.skip(str(error))
    if runtime != "cuda":
        pytest.skip(f"needs a GPU; the runtime here is {runtime}")
    if cupy is None:
        pytest.skip("needs CuPy")


@pytest.fixture(autouse=True)
def alone(request, gpu):
    """Skip what wants the device for itself where tests run in several processes."""
    if "PYTEST_XDIST_WORKER" in os.environ and request.node.get_closest_marker("alone"):
        pytest.skip("wants the device for itself: run it with -m alone, in one process")


@pytest.fixture(autouse=True)
def ignore_deprecations():
    """Let other people's packages deprecate what they like; pyproject.toml makes warnings errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


@pytest.fixture(autouse=True)
def current_device(gpu):
    """See that no test, and nothing that gpupool does in it, leaves another device current than it found."""
    before = gpupool.current_device()
    yield
    assert gpupool.current_device() == before


@pytest.fixture
def examples():
    """Return the folder of the examples."""
    return EXAMPLES
