"""The cuda runtime over an ABI double of the driver: the true bindings, and every way in which a driver can fail."""

import pytest
from abi import build_stub
from running import NO_GPU, run_bare_program


@pytest.fixture
def machine(machine_of):
    """Return a machine with a driver of one device, and cuSPARSE."""
    return machine_of("cusparse")


@pytest.fixture
def driver(machine):
    """Run one of the programs about drivers there."""

    def run(what, *arguments, **variables):
        machine.run("loading/drivers.py", what, *arguments, **{"FAKE_DEVICES": "1", **variables})

    return run


def test_handles_work(driver):
    driver("gives_a_handle", "cusparse")
    driver("gives_handles_of_each_device", FAKE_DEVICES="2")


def test_a_driver_that_does_not_start(driver):
    start = "RuntimeUnavailable the cuda runtime is unavailable: the NVIDIA driver does not start"
    driver("gives_none", "cusparse", start, "cuInit failed with CUDA_ERROR_UNKNOWN (999)", FAKE_FAIL="cuInit=999")


def test_the_toolkits_stub_is_not_opened_where_there_is_a_driver(driver, machine):
    stubs = build_stub(machine.folder / "stubs").parent
    driver("gives_a_handle", "cusparse", LD_LIBRARY_PATH=f"{stubs}:{machine.driver.parent}")


def test_a_driver_without_a_device(driver):
    said = "the NVIDIA driver sees no device; check CUDA_VISIBLE_DEVICES"
    driver("gives_none", "cusparse", "RuntimeUnavailable", said, FAKE_DEVICES="0", **NO_GPU)


def test_a_driver_that_lacks_a_symbol(driver, machine):
    machine.build("-DWITHOUT_CAPTURE_MODE")
    said = "lacks the symbol cuThreadExchangeStreamCaptureMode: the driver is too old"
    driver("gives_none", "cusparse", "RuntimeUnavailable", said)


def test_a_driver_older_than_the_library(driver):
    driver(
        "gives_none",
        "cusparse",
        "LibraryNotFound cusparse was not found.",
        "nvidia-cusparse: passed over, since it is built for CUDA 13 and the driver supports CUDA 12",
        "pip install nvidia-cusparse-cu12",
        FAKE_DRIVER_VERSION="12040",
    )


def test_a_driver_older_than_the_library_that_the_environment_names(driver, machine):
    file = machine.site_packages / "nvidia/cu13/lib/libcusparse.so.12"
    driver(
        "gives_none",
        "cusparse",
        "LibraryError",
        "cusparseCreate failed with CUSPARSE_STATUS_NOT_INITIALIZED (1) on device 0",
        "built for CUDA 13, and this driver supports CUDA 12.4: update the driver",
        FAKE_DRIVER_VERSION="12040",
        FAKE_FAIL="cusparseCreate=1",
        GPUPOOL_CUSPARSE_PATH=str(file),
    )


def test_a_library_that_runs_out_of_memory(driver):
    start = "OutOfMemory out of memory on device 0: cusparse: cusparseCreate failed"
    variables = {"FAKE_FAIL": "cusparseCreate=2", "FAKE_FREE_MIB": "0"}
    driver("gives_none", "cusparse", start, "Free: 0.0 MiB of 1.0 GiB", **variables)


def test_not_initialized_means_out_of_memory_where_memory_is_short(driver, machine):
    machine.install("cublas")
    driver("gives_a_handle", "cublas")
    fails = {"FAKE_FAIL": "cublasCreate_v2=1"}
    driver("gives_none", "cublas", "LibraryError cublas: cublasCreate_v2 failed", **fails)
    said = "A cublas handle takes about 64.0 MiB. Free: 63.0 MiB of 1.0 GiB"
    driver("gives_none", "cublas", "OutOfMemory out of memory on device 0", said, **fails, FAKE_FREE_MIB="63")


def test_what_cudnn_says_of_its_last_error_is_told(driver, machine):
    machine.install("cudnn")
    said = "No device is good enough"
    variables = {"FAKE_FAIL": "cudnnCreate=3000", "FAKE_LAST_ERROR": said}
    driver("gives_none_and_ends_with", "cudnn", f". The library says: {said}", **variables)


def test_a_stream_that_the_driver_does_not_know_is_refused(driver):
    driver("refuses_a_stream_that_it_does_not_know", FAKE_DEVICES="2", FAKE_FAIL="cuStreamGetCtx=709")


def test_a_device_that_does_not_exist(driver):
    driver("gives_none_of_a_device_that_is_not_there")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("cuda", "RuntimeUnavailable the cuda runtime is unavailable: no NVIDIA driver was found (libcuda.so.1: "),
        ("hip", "RuntimeUnavailable the hip runtime is unavailable: no HIP library was found (libamdhip64.so.8: "),
        ("gpu", "InvalidValue GPUPOOL_RUNTIME='gpu' names no runtime"),
    ],
)
def test_a_runtime_that_cannot_be_had(wanted, expected):
    run_bare_program("loading/drivers.py", "gives_none", "simulated", expected, GPUPOOL_RUNTIME=wanted)


def test_a_replay_asks_the_drivers_pool_what_it_has(driver):
    driver("is_asked_what_its_pool_has")
