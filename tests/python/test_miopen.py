"""MIOpen over ABI doubles of it and of HIP. What it has in common with other libraries is in test_platforms.py."""

import pytest
from abi import build_driver, build_library
from machines import Machine
from running import NO_GPU


@pytest.fixture
def machine(tmp_path):
    """Return a machine with HIP and MIOpen."""
    machine = Machine("hip", tmp_path)
    machine.install("miopen")
    return machine


@pytest.fixture
def check(machine):
    """Run one of the programs about MIOpen there."""
    return lambda what, *arguments, **variables: machine.run("platforms/miopen.py", what, *arguments, **variables)


@pytest.fixture
def is_found(machine):
    """Check that MIOpen is found there, as this file."""
    return lambda file, **variables: machine.run("loading/libraries.py", "is_found", "miopen", file, **variables)


def test_it_is_found_in_the_wheel_of_any_gpu_family(machine, is_found, check):
    is_found(machine.install("miopen"))
    check("is_itself")


def test_it_is_found_in_pytorchs_wheel(is_found, tmp_path):
    file = build_library("miopen", tmp_path / "other/torch/lib/libMIOpen.so")
    is_found(file, PYTHONPATH=str(tmp_path / "other"))


def test_it_is_found_in_the_toolkit(is_found, tmp_path):
    file = build_library("miopen", tmp_path / "rocm/lib/libMIOpen.so.1")
    is_found(file, PYTHONPATH=None, ROCM_PATH=str(tmp_path / "rocm"))


def test_the_environment_names_it(is_found, tmp_path):
    file = build_library("miopen", tmp_path / "mine/MIOpen.so")
    is_found(file, GPUPOOL_MIOPEN_PATH=str(file))


def test_where_it_is_missing_every_place_is_told(check):
    places = ("/nowhere/lib/libMIOpen.so.1", "libMIOpen.so.1: ", "/opt/rocm/lib/libMIOpen.so.1")
    said = [*(f"tried {place}" for place in places), "rocm[libraries]", "GPUPOOL_MIOPEN_PATH"]
    check("is_missing", *said, PYTHONPATH=None, ROCM_PATH="/nowhere")


def test_a_symbol_that_it_lacks_is_told(machine, check):
    old = build_library(
        "miopen", machine.site_packages / "_rocm_sdk_libraries/lib/libMIOpen.so.1", without="GET_STREAM"
    )
    said = f"{old} (from GPUPOOL_MIOPEN_PATH) (loaded): lacks the symbol miopenGetStream, so it is too old"
    check("gives_no_handle", "LibraryNotFound", said, GPUPOOL_MIOPEN_PATH=str(old))


def test_an_nvidia_gpu_gives_no_handle_of_it(machine, check):
    build_driver(machine.driver.parent)
    check("gives_no_handle_on_an_nvidia_gpu")


def test_an_amd_gpu_gives_no_handle_of_an_nvidia_library(machine, check):
    machine.install("cublas")
    check("nvidias_library_gives_no_handle_on_an_amd_gpu")


def test_simulated_devices_give_none_and_say_why(check):
    said = ("the hip runtime is unavailable: HIP sees no device", "gpupool simulates devices here (runtime host)")
    check("gives_no_handle", "RuntimeUnavailable", *said, FAKE_FAIL="hipInit=100", **NO_GPU)


def test_the_stream_is_asked_for_and_set_only_if_it_differs(check):
    check("the_stream_is_asked_for_and_set_only_if_it_differs")


def test_it_may_run_out_of_memory(check):
    start = "OutOfMemory out of memory on device 0: miopen: miopenCreate failed with miopenStatusAllocF"
    variables = {"FAKE_FAIL": "miopenCreate=4", "FAKE_FREE_MIB": "0"}
    check("gives_no_handle", start, "Free: 0.0 MiB of 1.0 GiB", **variables)


def test_a_version_that_is_refused_is_told(check):
    check("a_version_that_is_refused_is_told")
