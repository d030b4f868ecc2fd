"""Hand-over on doubles of the libraries: what an owner set of a handle, the next one does not have."""

import pytest
from abi import build_library
from programs.shared.libraries import LIBRARIES
from running import functions_of

WITH_SETTINGS = [name for name, library in LIBRARIES.items() if library.settings]


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_all_that_an_owner_set_is_set_back(machine_of, name):
    machine_of(name).run("platforms/settings.py", "all_are_set_back", name)


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_a_version_without_the_settings_is_used_as_it_is(machine_of, name):
    machine = machine_of(name)
    build_library(name, machine.site_packages / LIBRARIES[name].file, without="SETTINGS")
    machine.run("platforms/settings.py", "a_version_without_them_is_used_as_it_is", name)


@pytest.mark.parametrize("without", ["SET_PINNED", "GET_PINNED", "GET_MEMORY"])
def test_a_cudss_without_one_of_its_handlers_functions_is_used_as_it_is(machine_of, without):
    machine = machine_of("cudss")
    build_library("cudss", machine.site_packages / LIBRARIES["cudss"].file, without=without)
    machine.run("platforms/settings.py", "a_version_without_them_is_used_as_it_is", "cudss")


def test_where_asking_is_cheaper_nothing_is_set_that_is_as_it_was(machine_of):
    machine_of("cusolver").run("platforms/settings.py", "what_is_as_it_was_is_only_asked_for", "cusolver")


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("cublas", "cublasSetMathMode"),
        ("cublas", "cublasSetFixedPointEmulationMantissaBitCountPointer"),
        ("cusparse", "cusparseSetPointerMode"),
        ("cudss", "cudssSetJitCacheDir"),
        ("miopen", "miopenSetAllocator"),
    ],
)
def test_a_refusal_is_told_and_loses_no_handle(machine_of, name, function):
    machine_of(name).run("platforms/settings.py", "a_refusal_is_told_and_loses_no_handle", name, function)


def test_a_workspace_of_the_last_owner_goes_where_gpupool_gives_none(machine_of):
    run = machine_of("cublas").run
    run("platforms/settings.py", "the_library_s_own_workspace_comes_back", CUBLAS_WORKSPACE_CONFIG=":0:0")


@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.parametrize("what", ["pinned", "device"])
def test_a_handle_whose_owner_left_memory_by_a_handler_of_his_own_is_given_up(machine_of, what, limit):
    run = machine_of("cudss").run
    told = run("platforms/settings.py", "a_handler_that_is_in_use_ends_the_handle", what, limit, FAKE_VMM="1")
    # No error says so: the next owner has another handle.
    assert (
        told.count("WARNING:gpupool.handle:cudss: a handle is given up, as something of its former owner's is in use")
        == 3
    )


@pytest.mark.parametrize("function", functions_of("platforms/settings.py", "the_library_s_own_workspace_comes_back"))
def test_handlers_of_cudss(machine_of, function):
    machine_of("cudss").run("platforms/settings.py", function)
