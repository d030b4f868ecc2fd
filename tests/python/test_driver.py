"""The cuda runtime over an ABI double of the driver: the true bindings, and every way in which a driver can fail."""

import pytest
from abi import build_driver, build_library


def handle(name, arguments=""):
    """Code that asks for a handle and prints what came of it."""
    return f"""
import gpupool
try:
    print(gpupool.{name}.handle({arguments}) != 0, gpupool.runtime(), gpupool.current_device())
except gpupool.Error as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def machine(tmp_path, run_bare_python):
    """A machine with a driver and cuSPARSE; returns what code prints there."""
    build_driver(tmp_path / "driver")
    build_library("cusparse", tmp_path / "site/nvidia/cu13/lib/libcusparse.so.12")
    folders = {"LD_LIBRARY_PATH": str(tmp_path / "driver"), "PYTHONPATH": str(tmp_path / "site")}

    def run(code=None, **variables):
        code = code or handle("cusparse")
        done = run_bare_python(code, GPUPOOL_RUNTIME=None, **folders, **variables)
        assert done.stderr == ""
        return done.stdout

    return run


def test_handles_work(machine):
    assert machine() == "True cuda 0\n"
    code = """
import gpupool, threading
stream = gpupool.Stream(1)
zero, one = gpupool.cusparse.handle(), gpupool.cusparse.handle(stream)
print(zero != one, gpupool.cusparse.handle(device=1) == one, gpupool.cusparse.handle(stream.ptr) == one)
print(gpupool.current_device(), gpupool.device_count(), gpupool.cusparse.stats(1).hits)
with gpupool.stream(stream):
    print(gpupool.current_device(), gpupool.cusparse.handle() == one)
print(gpupool.current_device())
threading.Thread(target=gpupool.cusparse.handle).start()
try:
    gpupool.cusparse.handle(stream, device=0)
except gpupool.InvalidValue as error:
    print("belongs to device 1" in str(error))
print(gpupool.cusparse.available, gpupool.cusparse.version)
"""
    assert machine(code, FAKE_DEVICES="2") == "True True True\n0 2 2\n1 True\n0\nTrue\nTrue (1, 2, 3)\n"


def test_a_driver_that_does_not_start(machine):
    message = machine(FAKE_FAIL="cuInit=999")
    assert "RuntimeUnavailable the cuda runtime is unavailable: the NVIDIA driver does not start" in message
    assert "cuInit failed with CUDA_ERROR_UNKNOWN (999)" in message


def test_a_driver_without_a_device(machine):
    message = machine(FAKE_DEVICES="0")
    assert "the NVIDIA driver sees no device; check CUDA_VISIBLE_DEVICES" in message


def test_a_driver_that_lacks_a_symbol(machine, tmp_path):
    build_driver(tmp_path / "driver", "-DWITHOUT_CAPTURE_MODE")
    message = machine()
    assert "lacks the symbol cuThreadExchangeStreamCaptureMode: the driver is too old" in message


def test_a_driver_older_than_the_library(machine):
    message = machine(FAKE_DRIVER_VERSION="12040")
    assert message.startswith("LibraryNotFound cusparse was not found.")
    assert "nvidia-cusparse: passed over, since it is built for CUDA 13 and the driver supports CUDA 12" in message
    assert "pip install nvidia-cusparse-cu12" in message


def test_a_driver_older_than_the_library_that_the_environment_names(machine, tmp_path):
    file = tmp_path / "site/nvidia/cu13/lib/libcusparse.so.12"
    variables = {"FAKE_DRIVER_VERSION": "12040", "FAKE_FAIL": "cusparseCreate=1", "GPUPOOL_CUSPARSE_PATH": str(file)}
    message = machine(**variables)
    assert "cusparseCreate failed with CUSPARSE_STATUS_NOT_INITIALIZED (1) on device 0" in message
    assert "built for CUDA 13, and this driver supports CUDA 12.4: update the driver" in message


def test_a_library_that_runs_out_of_memory(machine):
    message = machine(FAKE_FAIL="cusparseCreate=2", FAKE_FREE_MIB="0")
    assert message.startswith("OutOfMemory out of memory on device 0: cusparse: cusparseCreate failed")
    assert "Free: 0.0 MiB of 1.0 GiB" in message


def test_not_initialized_means_out_of_memory_where_memory_is_short(machine, tmp_path):
    build_library("cublas", tmp_path / "site/nvidia/cu13/lib/libcublas.so.13")
    cublas = handle("cublas")
    assert machine(cublas) == "True cuda 0\n"
    assert machine(cublas, FAKE_FAIL="cublasCreate_v2=1").startswith("LibraryError cublas: cublasCreate_v2 failed")
    message = machine(cublas, FAKE_FAIL="cublasCreate_v2=1", FAKE_FREE_MIB="63")
    assert message.startswith("OutOfMemory out of memory on device 0")
    assert "A cublas handle takes about 64.0 MiB. Free: 63.0 MiB of 1.0 GiB" in message


def test_what_cudnn_says_of_its_last_error_is_told(machine, tmp_path):
    build_library("cudnn", tmp_path / "site/nvidia/cudnn/lib/libcudnn.so.9")
    said = "No device is good enough"
    message = machine(handle("cudnn"), FAKE_FAIL="cudnnCreate=3000", FAKE_LAST_ERROR=said)
    assert message.endswith(f". The library says: {said}\n")


def test_a_stream_that_the_driver_does_not_know_is_refused(machine):
    code = """
import gpupool
stream = gpupool.Stream(1)
try:
    gpupool.cusparse.handle(stream.ptr)
except gpupool.LibraryError as error:
    print(error)
"""
    message = machine(code, FAKE_DEVICES="2", FAKE_FAIL="cuStreamGetCtx=709")
    assert message == "cuda: cuStreamGetCtx failed with CUDA_ERROR_CONTEXT_IS_DESTROYED (709)\n"


def test_a_device_that_does_not_exist(machine):
    message = machine(handle("cusparse", "device=1"))
    assert message == "InvalidValue there is no device 1: this process sees 1, numbered from 0\n"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("cuda", "RuntimeUnavailable the cuda runtime is unavailable: no NVIDIA driver was found (libcuda.so.1: "),
        ("hip", "RuntimeUnavailable the hip runtime is unavailable: no HIP library was found (libamdhip64.so.8: "),
        ("gpu", "InvalidValue GPUPOOL_RUNTIME='gpu' names no runtime"),
    ],
)
def test_a_runtime_that_cannot_be_had(run_bare_python, wanted, expected):
    done = run_bare_python(handle("host"), GPUPOOL_RUNTIME=wanted)
    assert done.stdout.replace('"', "'").startswith(expected)


@pytest.mark.parametrize(
    "variables",
    [{"GPUPOOL_HOST_DEVICES": "0"}, {"GPUPOOL_HOST_DEVICES": "many"}, {"GPUPOOL_HOST_MEMORY": "-1"}],
)
def test_simulated_devices_that_cannot_be(run_bare_python, variables):
    done = run_bare_python(handle("host"), **variables)
    assert done.stdout.startswith("InvalidValue ")
    assert done.stderr == ""


def test_a_replay_asks_the_drivers_pool_what_it_has(machine):
    code = """
from gpupool import _native

slots, sizes, streams = (number.to_bytes(width, "little") for number, width in ((0, 4), (1 << 20, 8), (0, 4)))
for allocator in ("driver", "async"):
    result = _native.replay(slots, sizes, streams, 1, 1, allocator)
    print(result.peak_reserved, _native.replay_reserved(slots, sizes, streams, 1, 100, allocator))
"""
    # The double's pool says that it has 64 MiB; what cuMemAlloc takes beyond what is asked for, no driver tells.
    assert machine(code) == f"{1 << 20} [(0, {1 << 20})]\n{64 << 20} [(0, {64 << 20})]\n"
