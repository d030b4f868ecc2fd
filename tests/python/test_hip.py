"""The hip runtime over an ABI double of HIP: how it is found, and what HIP does otherwise than CUDA."""

import machines
import pytest
from abi import build_driver, build_hip
from forks import Machine, run_bare_program
from running import NO_GPU, functions_of


@pytest.fixture
def machine(tmp_path):
    """Return a machine with HIP."""
    return Machine("hip", tmp_path)


def check_bare(what, *arguments, **variables):
    """Run one of the programs about runtimes on a machine without HIP, at least where the linker looks."""
    run_bare_program("loading/runtimes.py", what, *arguments, **{"GPUPOOL_RUNTIME": None, **variables})


def test_the_first_platform_with_a_device_is_chosen(tmp_path):
    # Two drivers are in one folder.
    machine = machines.Machine("hip", tmp_path)

    def is_chosen(name, **variables):
        machine.run("loading/runtimes.py", "is_chosen", name, **variables)

    is_chosen("hip")
    is_chosen("host", GPUPOOL_RUNTIME="host")
    build_driver(machine.driver.parent)
    is_chosen("cuda")
    is_chosen("hip", FAKE_FAIL="cuInit=100")
    is_chosen("host", FAKE_FAIL="cuInit=100,hipInit=100", **NO_GPU)
    is_chosen("hip", GPUPOOL_RUNTIME="hip")


@pytest.mark.parametrize("soname", ["libamdhip64.so.5", "libamdhip64.so.6", "libamdhip64.so.7", "libamdhip64.so.8"])
def test_every_major_version_is_found(tmp_path, soname):
    build_hip(tmp_path / soname)
    check_bare("is_chosen", "hip", LD_LIBRARY_PATH=str(tmp_path))


def test_it_is_found_in_wheels_and_in_the_toolkit(tmp_path):
    build_hip(tmp_path / "site/_rocm_sdk_core/lib/libamdhip64.so.7")
    check_bare("is_chosen", "hip", PYTHONPATH=str(tmp_path / "site"))
    build_hip(tmp_path / "other/torch/lib/libamdhip64.so")
    check_bare("is_chosen", "hip", PYTHONPATH=str(tmp_path / "other"))
    build_hip(tmp_path / "rocm/lib/libamdhip64.so.6")
    check_bare("is_chosen", "hip", ROCM_PATH=str(tmp_path / "rocm"))


def test_the_environment_names_a_file_or_a_folder(tmp_path):
    file = build_hip(tmp_path / "mine/libamdhip64.so.7")
    check_bare("is_chosen", "hip", GPUPOOL_AMDHIP64_PATH=str(file))
    check_bare("is_chosen", "hip", GPUPOOL_AMDHIP64_PATH=str(file.parent))
    check_bare(
        "cannot_be_had",
        "the hip runtime is unavailable: no HIP library was found (/nowhere/hip.so: ",
        "from GPUPOOL_AMDHIP64_PATH); name another file, or unset it",
        GPUPOOL_AMDHIP64_PATH="/nowhere/hip.so",
        GPUPOOL_RUNTIME="hip",
    )


def test_a_copy_that_is_loaded_is_taken_and_no_other_loaded(machine, tmp_path):
    # The machine's own is loaded before gpupool asks; another one comes first in every place where gpupool would look.
    for folder in ("site/_rocm_sdk_core/lib", "rocm/lib"):
        build_hip(tmp_path / folder / "libamdhip64.so.8")
    rocm = str(tmp_path / "rocm")
    machine.run("platforms/hip.py", "a_copy_that_is_loaded_is_taken_and_no_other", ROCM_PATH=rocm)


def test_a_library_that_lacks_a_symbol(machine):
    machine.build("-DWITHOUT_STREAM_DEVICE")
    start = f"the hip runtime is unavailable: {machine.driver} lacks the symbol "
    said = "hipStreamGetDevice: it is too old; ROCm 5.6 or later is needed"
    machine.run("loading/runtimes.py", "cannot_be_had", start, said, GPUPOOL_RUNTIME="hip")


def test_a_library_that_does_not_start(machine):
    failed = f"hip: hipInit failed with hipErrorUnknown (999), library {machine.driver}"
    said = f"the hip runtime is unavailable: HIP does not start ({failed}); `rocminfo` says"
    variables = {"GPUPOOL_RUNTIME": "hip", "FAKE_FAIL": "hipInit=999"}
    machine.run("loading/runtimes.py", "cannot_be_had", "", said, **variables)


@pytest.mark.parametrize("variables", [{"FAKE_DEVICES": "0"}, {"FAKE_FAIL": "hipInit=100"}])
def test_a_machine_without_a_device(machine, variables):
    said = "the hip runtime is unavailable: HIP sees no device; check HIP_VISIBLE_DEVICES"
    machine.run("loading/runtimes.py", "cannot_be_had", "", said, GPUPOOL_RUNTIME="hip", **variables)
    machine.run("platforms/hip.py", "without_a_device_they_are_simulated", **variables, **NO_GPU)


@pytest.mark.parametrize(
    "function",
    functions_of(
        "platforms/hip.py",
        "a_copy_that_is_loaded_is_taken_and_no_other",
        "without_a_device_they_are_simulated",
        "a_switch_that_is_neither_on_nor_off_is_refused",
        "nothing_is_called_when_the_process_ends",
    ),
)
def test_on_hip(machine, function):
    machine.run("platforms/hip.py", function)


@pytest.mark.parametrize("refused", ["AddressReserve", "Create", "Map", "SetAccess", "Unmap", "Release", "AddressFree"])
def test_virtual_memory_that_does_not_work_is_not_used(machine, refused):
    program = ("platforms/hip.py", "virtual_memory_that_does_not_work_is_not_used")
    machine.run(*program, f"hipMem{refused}", FAKE_VMM="1")


def test_virtual_memory_can_be_turned_off(machine):
    machine.run("platforms/hip.py", "virtual_memory_is", "used", FAKE_VMM="1")
    machine.run("platforms/hip.py", "virtual_memory_is", "unused", FAKE_VMM="1", GPUPOOL_HIP_VIRTUAL_MEMORY="0")


def test_a_switch_that_is_neither_on_nor_off_is_refused(machine):
    program = ("platforms/hip.py", "a_switch_that_is_neither_on_nor_off_is_refused")
    machine.run(*program, FAKE_VMM="1", GPUPOOL_HIP_VIRTUAL_MEMORY="off")


def test_nothing_is_called_on_the_driver_when_the_process_ends(machine):
    machine.run("platforms/hip.py", "nothing_is_called_when_the_process_ends", FAKE_VMM="1")
