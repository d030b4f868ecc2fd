"""A driver that is there and does not work is an error, and no reason to simulate devices."""

from pathlib import Path

import forks
import pytest
from abi import compile_double
from machines import Machine

CUDA, HIP = "the cuda runtime is unavailable: ", "the hip runtime is unavailable: "
# What the driver returns, and what mends it.
STATUSES = {
    34: ("CUDA_ERROR_STUB_LIBRARY", "CUDA_ERROR_STUB_LIBRARY: this is the toolkit's stub", "off LD_LIBRARY_PATH"),
    3: ("CUDA_ERROR_NOT_INITIALIZED", "`nvidia-smi` says whether it works here", "--gpus all", "forked"),
    802: ("CUDA_ERROR_SYSTEM_NOT_READY", "nvidia-fabricmanager"),
    803: ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "of different drivers: reboot after an update", "cuda-compat"),
    804: ("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "cuda-compat, which this GPU does not support"),
    999: ("CUDA_ERROR_UNKNOWN", "nvidia_uvm are loaded"),
    1000: ("unknown status 1000", "`nvidia-smi` says whether it works here"),
}


@pytest.fixture
def machine(tmp_path):
    """Return a machine with NVIDIA's driver and no HIP."""
    return Machine("cuda", tmp_path)


@pytest.fixture
def hip(tmp_path):
    """Return a machine with HIP and no driver of NVIDIA's."""
    return Machine("hip", tmp_path)


@pytest.fixture
def whole(tmp_path):
    """Return a machine whose driver stays as it is built."""
    return forks.Machine("cuda", tmp_path)


@pytest.fixture
def whole_hip(tmp_path):
    """Return a machine whose HIP stays as it is built."""
    return forks.Machine("hip", tmp_path)


def refuses(machine, start, *said, **variables):
    machine.run("loading/runtimes.py", "memory_is_refused", start, *said, **variables)


def simulates(machine, **variables):
    machine.run("loading/runtimes.py", "memory_is_simulated", **variables)


@pytest.mark.parametrize("status", STATUSES)
def test_a_driver_that_does_not_start(whole, status):
    name, *said = STATUSES[status]
    name = name if name.endswith(str(status)) else f"{name} ({status})"
    failed = f"cuda: cuInit failed with {name}, library {whole.driver}"
    fails = {"FAKE_FAIL": f"cuInit={status}"}
    refuses(whole, f"{CUDA}the NVIDIA driver does not start ({failed})", *said, **fails)
    simulates(whole, GPUPOOL_RUNTIME="host", **fails)


@pytest.mark.parametrize("function", ["cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet"])
def test_a_driver_that_does_not_tell_its_devices(whole, function):
    said = f"the NVIDIA driver does not start (cuda: {function} failed with CUDA_ERROR_UNKNOWN (999)"
    refuses(whole, CUDA + said, f"library {whole.driver}", FAKE_FAIL=f"{function}=999")


def test_a_toolkits_stub_in_place_of_the_driver(machine):
    machine.build("-DSTUB")
    said = f"the NVIDIA driver does not start (cuda: cuInit failed with unknown status 34, library {machine.driver})"
    refuses(machine, CUDA + said, "CUDA_ERROR_STUB_LIBRARY: this is the toolkit's stub")


def test_a_driver_that_lacks_a_symbol(machine):
    machine.build("-DWITHOUT_CAPTURE_MODE")
    said = f"{machine.driver}, a driver that supports CUDA 11.2, lacks the symbol cuThreadExchangeStreamCaptureMode"
    refuses(machine, CUDA + said, "the driver is too old", FAKE_DRIVER_VERSION="11020")


def test_a_driver_that_is_too_old(whole):
    said = f"{whole.driver} is a driver that supports CUDA 11.8 at most, and CUDA 12 or later is needed"
    refuses(whole, CUDA + said, FAKE_DRIVER_VERSION="11080")


def test_a_file_that_is_no_library(machine):
    machine.driver.write_text("no library")
    refuses(machine, f"{CUDA}the NVIDIA driver's library cannot be loaded ({machine.driver}: ", "off LD_LIBRARY_PATH")


def test_a_driver_that_needs_a_library_which_is_not_there(machine, tmp_path):
    needed = compile_double("nvtx.c", tmp_path / "other/libneeded.so.1")
    machine.build("-Wl,--no-as-needed", f"-L{needed.parent}", f"-l:{needed.name}")
    refuses(machine, f"{CUDA}the NVIDIA driver's library cannot be loaded (libneeded.so.1: ")


@pytest.mark.parametrize("variables", [{"FAKE_DEVICES": "0"}, {"FAKE_FAIL": "cuInit=100"}])
def test_a_driver_without_a_device_is_none(whole, variables):
    simulates(whole, **variables)


def test_no_driver_at_all_is_none(machine):
    machine.driver.unlink()
    simulates(machine)


def test_hip_that_does_not_start(whole_hip):
    failed = f"hip: hipInit failed with hipErrorNotInitialized (3), library {whole_hip.driver}"
    fails = {"FAKE_FAIL": "hipInit=3"}
    refuses(whole_hip, f"{HIP}HIP does not start ({failed})", "`rocminfo` says", "/dev/kfd", **fails)
    simulates(whole_hip, GPUPOOL_RUNTIME="host", **fails)


@pytest.mark.skipif(Path("/sys/class/kfd").exists(), reason="needs a machine without the kernel's driver of AMD's GPUs")
def test_hip_that_a_distribution_installed_where_no_gpu_is_amds(whole_hip):
    simulates(whole_hip, FAKE_FAIL="hipInit=101")


def test_hip_that_is_too_old(whole_hip):
    said = f"{whole_hip.driver} is of HIP 5.5, which is too old; ROCm 5.6 or later is needed"
    refuses(whole_hip, HIP + said, FAKE_HIP_VERSION="50531061")


def test_hips_file_that_is_no_library(hip):
    hip.driver.write_text("no library")
    refuses(hip, f"{HIP}HIP's library cannot be loaded (", f"{hip.driver}: ")


def test_hips_file_that_is_named_and_not_there(whole_hip):
    variables = {"GPUPOOL_AMDHIP64_PATH": "/nowhere/hip.so"}
    refuses(
        whole_hip,
        f"{HIP}no HIP library was found (/nowhere/hip.so: ",
        "name another file, or unset it",
        **variables,
    )


def test_hip_serves_beside_a_driver_of_nvidias_that_does_not_work(hip, machine):
    machine.build()
    fails = {"FAKE_FAIL": "cuInit=999"}
    hip.run("loading/runtimes.py", "is_chosen", "hip", **fails)
    said = "RuntimeUnavailable the cuda runtime is unavailable: the NVIDIA driver does not start ("
    hip.run("loading/drivers.py", "gives_none", "cusparse", said, "gpupool uses AMD's GPUs here (runtime hip)", **fails)
    refuses(hip, CUDA, GPUPOOL_AMDHIP64_PATH="/nowhere/hip.so", **fails)
