"""What `gpupool info` tells of a real GPU, real libraries and real frameworks."""

import json
import os
import re
import subprocess
import sys

import gpupool
import pytest
from gpu_helpers import POOLS, cupy, import_or_skip, pool_or_skip, run_program


def told(*arguments):
    """Return the exit code and the output of the command line."""
    command = [sys.executable, "-m", "gpupool", "info", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    return done.returncode, done.stdout


def by_name(described):
    return {each["name"]: each for each in described}


def test_all_of_it_works_here():
    code, output = told("--json")
    info = json.loads(output)
    assert (code, info["ok"], info["runtime"]["name"]) == (0, True, "cuda"), info["problems"]
    assert len(info["devices"]) == gpupool.device_count()
    libraries = by_name(info["libraries"])
    for name in POOLS:
        pool = getattr(gpupool, name)
        if pool.available:
            library = libraries[name]
            assert (library["state"], library["path"]) == ("loaded", pool.path)
            assert library["version"] == ".".join(map(str, pool.version))
            assert [check["seconds"] > 0 for check in library["handles"].values()] == [True] * len(info["devices"])
        else:
            assert libraries[name]["state"] in ("missing", "broken")
    code, output = told()
    assert code == 0
    assert max(map(len, output.splitlines())) <= 100


def test_the_devices_are_those_that_cupy_and_nvidia_smi_see():
    info = gpupool.info()
    for device in info.devices:
        properties = cupy.cuda.runtime.getDeviceProperties(device.ordinal)
        assert device.name == properties["name"].decode()
        assert device.compute_capability == f"{properties['major']}.{properties['minor']}"
        assert device.total_bytes == properties["totalGlobalMem"]
        assert device.pci_bus_id.lower() == cupy.cuda.Device(device.ordinal).pci_bus_id.lower()
        assert device.is_mig == ("MIG" in device.name)
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", info.runtime.kernel_driver or "0.0")
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs nvidia-smi")
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        assert all(device.uuid in listed for device in info.devices)


def test_the_uuid_is_that_of_cuda_core():
    core = import_or_skip("cuda.core")
    for device in gpupool.info().devices:
        assert device.uuid.partition("-")[2] in core.Device(device.ordinal).uuid.lower()


def test_an_answer_makes_no_context():
    run_program("telling/info_without_a_context.py")


def test_an_answer_spoils_no_capture():
    stream = cupy.cuda.Stream(non_blocking=True)
    gpupool.cublas.handle(stream)
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        gpupool.info()
        assert stream.end_capture() is not None


def test_libraries_are_the_copies_of_the_frameworks():
    pool_or_skip("cublas")
    assert [problem for problem in gpupool.info().problems if "copies of libcublas" in problem.what] == []


@pytest.mark.thorough
def test_pytorch_says_whose_its_memory_is():
    if not import_or_skip("torch").cuda.is_available():
        pytest.skip("needs a PyTorch with CUDA")
    run_program("telling/pytorchs_allocator.py")
