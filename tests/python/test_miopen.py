"""MIOpen over ABI doubles of it and of HIP. What it has in common with other libraries is in test_platforms.py."""

import pytest
from abi import build_driver, build_library
from machines import Machine


@pytest.fixture
def machine(tmp_path, run_bare_python):
    """A machine with HIP and MIOpen."""
    machine = Machine("hip", tmp_path, run_bare_python)
    machine.build()
    machine.install("miopen")
    return machine


FOUND = "print(gpupool.miopen.path)"


def test_it_is_found_in_the_wheel_of_any_gpu_family(machine):
    file = machine.install("miopen")
    assert machine.run(FOUND) == f"{file}\n"
    code = "print(gpupool.miopen.available, gpupool.miopen.name, gpupool.miopen.version)"
    assert machine.run(code) == "True miopen (1, 2, 3)\n"


def test_it_is_found_in_pytorchs_wheel(machine, tmp_path):
    file = build_library("miopen", tmp_path / "other/torch/lib/libMIOpen.so")
    assert machine.run(FOUND, PYTHONPATH=str(tmp_path / "other")) == f"{file}\n"


def test_it_is_found_in_the_toolkit(machine, tmp_path):
    file = build_library("miopen", tmp_path / "rocm/lib/libMIOpen.so.1")
    assert machine.run(FOUND, PYTHONPATH=None, ROCM_PATH=str(tmp_path / "rocm")) == f"{file}\n"


def test_the_environment_names_it(machine, tmp_path):
    file = build_library("miopen", tmp_path / "mine/MIOpen.so")
    assert machine.run(FOUND, GPUPOOL_MIOPEN_PATH=str(file)) == f"{file}\n"


def test_where_it_is_missing_every_place_is_told(machine):
    message = machine.run("print(error_of(gpupool.miopen.handle))", PYTHONPATH=None, ROCM_PATH="/nowhere")
    assert message.startswith("LibraryNotFound miopen was not found.")
    for place in ("/nowhere/lib/libMIOpen.so.1", "libMIOpen.so.1: ", "/opt/rocm/lib/libMIOpen.so.1"):
        assert f"tried {place}" in message
    assert "rocm[libraries]" in message
    assert "GPUPOOL_MIOPEN_PATH" in message
    assert "CUDA" not in message


def test_a_symbol_that_it_lacks_is_told(machine):
    old = build_library(
        "miopen", machine.site_packages / "_rocm_sdk_libraries/lib/libMIOpen.so.1", without="GET_STREAM"
    )
    message = machine.run("print(error_of(gpupool.miopen.handle))", GPUPOOL_MIOPEN_PATH=str(old))
    assert f"{old} (loaded): lacks the symbol miopenGetStream, so it is too old" in message


def test_an_nvidia_gpu_gives_no_handle_of_it(machine):
    build_driver(machine.driver.parent)
    code = "print(gpupool.runtime(), gpupool.miopen.available, error_of(gpupool.miopen.handle))"
    message = machine.run(code)
    assert message.startswith(
        "cuda False RuntimeUnavailable the hip runtime is unavailable: this process uses runtime cuda"
    )
    assert "set GPUPOOL_RUNTIME=hip before it starts" in message


def test_an_amd_gpu_gives_no_handle_of_an_nvidia_library(machine):
    machine.install("cublas")
    message = machine.run("print(gpupool.cublas.available, error_of(gpupool.cublas.handle))")
    assert message.startswith("False RuntimeUnavailable the cuda runtime is unavailable: this process uses runtime hip")


def test_simulated_devices_give_none_and_say_why(machine):
    message = machine.run("print(error_of(gpupool.miopen.handle))", FAKE_FAIL="hipInit=100")
    assert "the hip runtime is unavailable: HIP sees no device" in message
    assert "gpupool simulates devices here (runtime host)" in message


def test_the_stream_is_asked_for_and_set_only_if_it_differs(machine):
    code = """
library = ctypes.CDLL(gpupool.miopen.path)
stream = gpupool.Stream(1)
for _ in range(10):
    gpupool.miopen.handle(stream)
print(calls("miopenSetStream", library), calls("miopenGetStream", library), calls("miopenCreate", library))
"""
    assert machine.run(code) == "1 10 1\n"


def test_it_may_run_out_of_memory(machine):
    message = machine.run("print(error_of(gpupool.miopen.handle))", FAKE_FAIL="miopenCreate=4", FAKE_FREE_MIB="0")
    assert message.startswith(
        "OutOfMemory out of memory on device 0: miopen: miopenCreate failed with miopenStatusAllocF"
    )
    assert "Free: 0.0 MiB of 1.0 GiB" in message


def test_a_version_that_is_refused_is_told(machine):
    code = """
fail("miopenGetVersion=7")
try:
    gpupool.miopen.version
except gpupool.LibraryError as error:
    print(error.library, error.function, error.status, error.code, error.path == gpupool.miopen.path)
"""
    assert machine.run(code) == "miopen miopenGetVersion miopenStatusUnknownError 7 True\n"
