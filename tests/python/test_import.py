"""What `import gpupool` does, and what it leaves alone."""

import gpupool
import pytest
from running import run_program


def test_import_loads_no_gpu_library_and_chooses_no_runtime():
    # A runtime that cannot be had shows that none is asked for.
    run_program("importing/leaves_alone.py", "gpu_libraries", GPUPOOL_RUNTIME="nothing")


def test_import_imports_no_framework():
    frameworks = ("cupy", "torch", "numba", "numpy", "cuda", "pytest")
    run_program("importing/leaves_alone.py", "these_modules", "", *frameworks)


def test_a_command_imports_nothing_of_others():
    run_program("importing/leaves_alone.py", "other_commands")


@pytest.mark.parametrize("what", ["of_the_package", "of_the_command"])
def test_ctrl_c_during_an_import(what):
    run_program("importing/interrupted.py", what)


def test_everything_public_is_there():
    assert all(hasattr(gpupool, name) for name in gpupool.__all__)
    assert gpupool.__version__.count(".") == 2


def test_exceptions_fit_pythons_own():
    derived = [
        gpupool.RuntimeUnavailable,
        gpupool.LibraryNotFound,
        gpupool.LibraryError,
        gpupool.OutOfMemory,
        gpupool.Forked,
        gpupool.InvalidValue,
    ]
    assert all(issubclass(exception, gpupool.Error) for exception in derived)
    assert issubclass(gpupool.OutOfMemory, MemoryError)
    assert issubclass(gpupool.InvalidValue, ValueError)
    assert repr(gpupool.InvalidValue) == "<class 'gpupool.InvalidValue'>"


def test_exceptions_can_be_made_anew_as_libraries_do_that_carry_them_between_processes():
    for name in ("Error", "LibraryError", "OutOfMemory", "PoolExhausted", "InvalidValue"):
        exception = getattr(gpupool, name)
        assert str(exception.__new__(exception, "a message")) == "a message", name


def test_help_shows_the_modules_for_frameworks_without_them():
    run_program("importing/helped.py")
