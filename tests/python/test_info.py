"""What `gpupool info` and `gpupool.info()` tell: on simulated devices, over doubles of the drivers, of frameworks."""

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import gpupool
import pytest
from abi import build_library
from forks import Machine, run_bare_program, run_program, start_bare_command, start_program
from framework_machine import framework_machine
from gpupool import _native
from gpupool._report import info as _info
from gpupool._report.info import frameworks, libraries, text, variables
from gpupool._torch import place, pools
from running import functions_of

ROOT = Path(__file__).parents[2]
# What leads gpupool elsewhere on the machine that the tests run on.
UNSET = dict.fromkeys(
    name for name in os.environ if name.startswith(("GPUPOOL_", "CUDA_", "CUPY_", "NUMBA_", "HIP_", "ROCR_"))
)
without_gpu = pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")


@pytest.fixture
def command(tmp_path):
    """Return what runs `gpupool info --json` where nothing but gpupool is installed: the exit code and the answer."""

    def run(*arguments, **variables):
        variables = {**UNSET, "GPUPOOL_RUNTIME": "host", "PYTHONPATH": str(tmp_path), **variables}
        done = start_bare_command("info", "--json", *arguments, **variables)
        assert done.stderr == ""
        return done.returncode, json.loads(done.stdout)

    return run


def shown(start, **variables):
    """Return the exit code and the lines of `gpupool info`, every one of them fit for a terminal of 100 columns."""
    done = start("info", **{**UNSET, **variables})
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    return done.returncode, lines


def by_name(described):
    return {each["name"]: each for each in described}


def errors(info):
    return [problem["what"] for problem in info["problems"] if problem["severity"] == "error"]


def warnings(info):
    return [problem["what"] for problem in info["problems"] if problem["severity"] == "warning"]


# No GPU.


@without_gpu
def test_without_a_gpu_it_says_so_and_what_is_simulated_and_that_is_no_failure():
    code, lines = shown(start_bare_command)
    said = " ".join(line.strip() for line in lines)
    assert code == 0
    assert "host: no GPU was found. Devices and one library are simulated in plain memory" in said
    assert "not cuda: no NVIDIA driver was found; install the driver" in said
    assert "0  simulated device, 16.0 GiB, 16.0 GiB free" in said
    assert "Problems none" in said


def test_it_tries_every_device_and_library_and_what_is_missing_comes_with_the_command(command):
    code, info = command(GPUPOOL_HOST_DEVICES="2")
    simulated = by_name(info["libraries"])["simulated"]
    assert (info["smoke_test"], info["runtime"]["name"]) == (True, "host")
    assert [device["allocation"]["seconds"] > 0 for device in info["devices"]] == [True, True]
    assert [simulated["handles"][ordinal]["seconds"] > 0 for ordinal in ("0", "1")] == [True, True]
    cusparse = by_name(info["libraries"])["cusparse"]
    assert (code, info["ok"], cusparse["state"]) == (0, True, "missing")
    assert cusparse["remedy"].startswith("Install it with: pip install nvidia-cusparse\n")
    _, lines = shown(start_bare_command)
    assert "  cusparse    missing: pip install nvidia-cusparse" in lines


def test_without_the_smoke_test_nothing_is_loaded_or_made(command, tmp_path):
    build_library("cusparse", tmp_path / "nvidia/cu13/lib/libcusparse.so.12")
    code, info = command("--no-smoke-test")
    found = by_name(info["libraries"])
    assert (code, found["cusparse"]["state"], found["cusparse"]["path"], info["loaded_files"]) == (
        0,
        "not loaded",
        None,
        {},
    )
    assert info["devices"][0]["allocation"] is None
    assert found["simulated"]["handles"] == {}


@pytest.mark.parametrize("function", functions_of("telling/info.py"))
def test_an_answer_in_a_program(function):
    run_program("telling/info.py", function)


# What is broken.


def test_an_allocation_that_fails_is_a_failure(command):
    code, info = command(GPUPOOL_HOST_MEMORY="1000000")
    assert (code, info["ok"]) == (1, False)
    assert "out of memory on device 0: tried to allocate 2.0 MiB" in errors(info)[0]
    assert info["devices"][0]["allocation"] == {"seconds": None, "error": errors(info)[0]}


def test_a_handle_that_cannot_be_created_is_a_failure():
    gpupool.simulated.trim()
    _native.host_inject("HandleCreate", times=10)
    info = gpupool.info(smoke_test=True)
    assert not info.ok
    assert [problem.what for problem in info.problems if "HandleCreate" in problem.what]
    assert "no handle can be created" in str(info)


def test_a_pool_whose_handles_are_all_in_use_is_not_broken(make_pool, monkeypatch):
    monkeypatch.setattr(libraries, "_WAIT", 0.0)
    pool = make_pool()
    pool.limit = 1
    with pool.lease(device=0):
        assert libraries._try_handle(pool, 0) == _info.Check(seconds=None, error=None)


@without_gpu
@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("cuda", "the cuda runtime is unavailable: no NVIDIA driver was found"),
        ("nothing", 'GPUPOOL_RUNTIME="nothing" names no runtime; set it to cuda, hip or host'),
    ],
)
def test_a_runtime_that_cannot_be_had_is_a_failure(command, wanted, said):
    code, info = command(GPUPOOL_RUNTIME=wanted)
    assert (code, info["runtime"]["name"], info["runtime"]["chosen_by"], info["devices"]) == (
        1,
        None,
        "environment",
        [],
    )
    assert errors(info)[0].startswith(said)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GPUPOOL_CUSPARSE_PATH", "/nowhere/libcusparse.so.12", "GPUPOOL_CUSPARSE_PATH=/nowhere/{} leads nowhere"),
        ("GPUPOOL_WORKER", "{", "GPUPOOL_WORKER: the settings are not JSON"),
        ("GPUPOOL_ENABLE", "torch,numpy", "GPUPOOL_ENABLE names 'numpy', which gpupool cannot enable"),
    ],
)
def test_a_variable_that_cannot_be_right_is_one_failure(command, variable, value, said):
    code, info = command(**{variable: value})
    assert (code, len(errors(info))) == (1, 1)
    assert errors(info)[0].startswith(said.format("libcusparse.so.12"))
    state = by_name(info["libraries"])["cusparse"]["state"]
    assert state == ("broken" if variable == "GPUPOOL_CUSPARSE_PATH" else "missing")


def test_a_file_that_cannot_be_loaded_is_a_failure(command, tmp_path):
    broken = tmp_path / "nvidia/cu13/lib/libcusparse.so.12"
    broken.parent.mkdir(parents=True)
    broken.write_text("not a library")
    code, info = command()
    assert (code, by_name(info["libraries"])["cusparse"]["state"]) == (1, "broken")
    assert f"tried {broken}: " in errors(info)[0]


def test_a_library_whose_own_needs_are_missing_is_a_failure(command, tmp_path):
    cublas = build_library("cublas", tmp_path / "elsewhere/libcublas.so.13")
    build_library("cudss", tmp_path / "linker/libcudss.so.0", needs=("cublasGetProperty", cublas))
    code, info = command(LD_LIBRARY_PATH=str(tmp_path / "linker"))
    assert (code, by_name(info["libraries"])["cudss"]["state"]) == (1, "broken")
    assert "libcublas.so.13: cannot open shared object file" in errors(info)[0]


# Environment variables.


def test_a_variable_that_gpupool_does_not_know_is_pointed_out(command):
    code, info = command(GPUPOOL_RUNTIM="cuda", GPUPOOL_SOMETHING_ELSE="1")
    assert code == 0
    assert "gpupool knows no variable GPUPOOL_RUNTIM; did you mean GPUPOOL_RUNTIME?" in warnings(info)
    known = {variable["name"]: variable["known"] for variable in info["environment"]}
    assert (known["GPUPOOL_RUNTIM"], known["GPUPOOL_RUNTIME"]) == (False, True)


def test_every_variable_that_the_sources_read_is_known():
    # But for files of tests alone.
    rust = [path for path in ROOT.glob("src/**/*.rs") if path.stem != "tests"]
    sources = [*rust, *ROOT.glob("python/gpupool/**/*.py")]
    assert sources
    named = {name for source in sources for name in re.findall(r'"(GPUPOOL_[A-Z0-9_]*[A-Z0-9])"', source.read_text())}
    assert named <= set(variables.GPUPOOL)


def test_those_that_matter_are_listed_if_they_are_set(command):
    named = {
        "CUDA_VISIBLE_DEVICES": "0",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "CUPY_GPU_MEMORY_LIMIT": "50%",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NUMBA_CUDA_MEMORY_MANAGER": "gpupool.numba",
        "LD_LIBRARY_PATH": "/somewhere",
    }
    _, info = command(**named, NOT_OF_INTEREST="1")
    listed = {variable["name"]: variable["value"] for variable in info["environment"]}
    assert listed == {"GPUPOOL_RUNTIME": "host", **named}


def test_a_value_that_is_no_text_can_be_printed():
    code, lines = shown(start_bare_command, GPUPOOL_RUNTIME="host", LD_LIBRARY_PATH="/not-utf8-\udcff")
    assert code == 0
    assert "  LD_LIBRARY_PATH=/not-utf8-?" in lines


# Libraries.


def test_a_second_copy_in_the_process_is_pointed_out(tmp_path):
    ours = build_library("cusparse", tmp_path / "nvidia/cu13/lib/libcusparse.so.12")
    theirs = build_library("cusparse", tmp_path / "theirs/libcusparse-0a1b2c3d.so.11")
    run_bare_program("telling/info.py", "points_out_a_second_copy", ours, theirs, PYTHONPATH=str(tmp_path))


def test_one_copy_is_no_second_one(tmp_path):
    file = build_library("cusparse", tmp_path / "real/libcusparse.so.12")
    link = tmp_path / "nvidia/cu13/lib/libcusparse.so.12"
    link.parent.mkdir(parents=True)
    link.symlink_to(file)
    run_bare_program("telling/info.py", "takes_a_link_for_no_second_copy", file, link, PYTHONPATH=str(tmp_path))


# Drivers.


@pytest.fixture
def cuda(tmp_path):
    """Return a machine with a driver of NVIDIA's and cuSPARSE."""
    machine = Machine("cuda", tmp_path)
    machine.install("cusparse")
    return machine


@pytest.fixture
def hip(tmp_path):
    """Return a machine with HIP and MIOpen."""
    machine = Machine("hip", tmp_path)
    machine.install("miopen")
    return machine


def told(machine, **variables):
    """Return the exit code and the answer of `gpupool info --json` on a machine."""
    done = machine.start_command("info", "--json", **{**UNSET, **variables})
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_what_cudas_driver_tells_of_a_device(cuda):
    code, info = told(cuda)
    assert (code, info["problems"]) == (0, [])
    assert (info["runtime"]["name"], info["runtime"]["chosen_by"]) == ("cuda", "default")
    assert info["runtime"]["driver_version"] == "13.0"
    first, second = info["devices"]
    allocation = first.pop("allocation")
    assert (allocation["seconds"] > 0, allocation["error"]) == (True, None)
    # The page of the smoke test is cached.
    assert first.pop("free_bytes") <= 1 << 30
    assert first == {
        "ordinal": 0,
        "name": "double",
        "uuid": "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0",
        "compute_capability": "9.0",
        "pci_bus_id": "0000:18:00.0",
        "is_mig": False,
        "is_shareable": False,
        "is_rdma": False,
        "total_bytes": 1 << 30,
        "neighbours": None,
        "holders": {},
        "error": None,
    }
    assert (second["ordinal"], second["pci_bus_id"]) == (1, "0000:19:00.0")
    cusparse = by_name(info["libraries"])["cusparse"]
    assert (cusparse["state"], cusparse["version"], cusparse["origin"]) == ("loaded", "1.2.3", "wheel")
    assert cusparse["handles"].keys() == {"0", "1"}
    of_cuda = {"cudnn", "cublas", "cublaslt", "cusolver", "cusparse", "cudss"}
    assert set(by_name(info["libraries"])) == of_cuda | {"custatevec", "cutensornet", "cutensor", "cusparselt"}


def test_the_text_has_the_same(cuda):
    code, lines = shown(cuda.start_command)
    assert code == 0
    assert re.fullmatch(r"  cuda: CUDA 13\.0(, kernel driver [\d.]+)?", lines[lines.index("Runtime") + 1])
    assert re.fullmatch(
        r"  0  double, compute capability 9\.0, 1\.0 GiB, [\d.]+ [MG]iB free", lines[lines.index("Devices") + 1]
    )
    assert "     GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0, PCI 0000:18:00.0" in lines
    assert any(
        re.fullmatch(r"  cusparse    1\.2\.3      wheel       2 handles in [\d.]+ to [\d.]+ ms", line) for line in lines
    )


@pytest.mark.parametrize(
    ("attributes", "uses"),
    [
        ({}, (True, False)),
        ({"FAKE_RDMA": "1"}, (True, True)),
        ({"FAKE_SHAREABLE": "0", "FAKE_RDMA": "1"}, (False, True)),
        # What the driver then refuses is found out by the smoke test's allocation.
        ({"FAKE_RDMA": "1", "FAKE_REFUSES_RDMA": "1"}, (True, False)),
        ({"FAKE_RDMA": "1", "FAKE_REFUSES_SHAREABLE": "1", "FAKE_REFUSES_RDMA": "1"}, (False, False)),
    ],
)
def test_what_memory_can_be_used_for(cuda, attributes, uses):
    code, info = told(cuda, FAKE_VMM="1", FAKE_DEVICES="1", **attributes)
    (device,) = info["devices"]
    assert (code, device["allocation"]["error"]) == (0, None)
    assert (device["is_shareable"], device["is_rdma"]) == uses


def test_a_mig_instance(cuda):
    _, info = told(cuda, FAKE_DEVICES="1", FAKE_DEVICE_NAME="NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    (device,) = info["devices"]
    assert (device["is_mig"], device["uuid"]) == (True, "MIG-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0")


@pytest.mark.parametrize("function", functions_of("telling/info_on_a_driver.py", "leaves_hips_current_device"))
def test_an_answer_on_a_driver(cuda, function):
    cuda.run("telling/info_on_a_driver.py", function)


@pytest.mark.parametrize("function", ["cuDeviceGetName", "cuDeviceGetPCIBusId", "cuDeviceGetUuid_v2"])
def test_a_device_that_tells_nothing_is_a_failure_of_it_alone(cuda, function):
    code, info = told(cuda, FAKE_FAIL=f"{function}=999:1")
    assert code == 1
    assert errors(info) == [f"cuda: {function.removesuffix('_v2')} failed with CUDA_ERROR_UNKNOWN (999) on device 0"]
    assert [device["error"] for device in info["devices"]] == [errors(info)[0], None]
    assert by_name(info["libraries"])["cusparse"]["handles"]["0"]["error"] is None


def test_a_driver_that_does_not_start_is_a_failure_and_nothing_is_simulated(cuda):
    code, info = told(cuda, FAKE_FAIL="cuInit=999")
    assert (code, info["runtime"]["name"], info["devices"]) == (1, None, [])
    assert "the NVIDIA driver does not start (cuda: cuInit failed with CUDA_ERROR_UNKNOWN (999)" in errors(info)[0]
    assert f"library {cuda.driver}" in errors(info)[0]
    assert info["runtime"]["error"] == errors(info)[0]
    code, lines = shown(cuda.start_command, FAKE_FAIL="cuInit=999")
    assert code == 1
    assert lines[lines.index("Runtime") + 1].startswith("  none: the cuda runtime is unavailable: the NVIDIA driver")


@without_gpu
@pytest.mark.parametrize("variables", [{"FAKE_DEVICES": "0"}, {"FAKE_FAIL": "cuInit=100"}])
def test_a_driver_without_a_gpu_is_no_failure(cuda, variables):
    code, info = told(cuda, **variables)
    assert (code, info["runtime"]["name"], info["ok"]) == (0, "host", True)
    assert info["runtime"]["passed_over"]["cuda"] == "the NVIDIA driver sees no device; check CUDA_VISIBLE_DEVICES"


def test_a_driver_that_is_too_old_is_a_failure(cuda):
    cuda.build("-DWITHOUT_CAPTURE_MODE")
    code, info = told(cuda)
    assert code == 1
    assert "lacks the symbol cuThreadExchangeStreamCaptureMode" in errors(info)[0]


def test_a_library_that_makes_no_handle_is_a_failure(cuda):
    code, info = told(cuda, FAKE_FAIL="cusparseCreate=1")
    assert code == 1
    assert len(errors(info)) == 2
    assert "cusparseCreate failed with CUSPARSE_STATUS_NOT_INITIALIZED (1) on device 0" in errors(info)[0]


def test_a_library_for_another_cuda_is_missing_not_broken(cuda):
    code, info = told(cuda, FAKE_DRIVER_VERSION="12040")
    cusparse = by_name(info["libraries"])["cusparse"]
    assert (code, cusparse["state"]) == (0, "missing")
    assert "pip install nvidia-cusparse-cu12" in cusparse["remedy"]


def test_libraries_of_two_versions_of_cuda_are_a_problem(cuda):
    build_library("cublas", cuda.site_packages / "nvidia/cublas/lib/libcublas.so.12")
    code, info = told(cuda)
    (said,) = warnings(info)
    assert code == 0
    assert said.startswith("libraries of CUDA 12 (cublas) and of CUDA 13 (cusparse) are used together.")
    assert "for CUDA 13 alone: pip uninstall nvidia-cublas-cu12; pip install nvidia-cublas;" in said
    assert said.endswith("for CUDA 12 alone: pip uninstall nvidia-cusparse; pip install nvidia-cusparse-cu12")


def test_what_hip_tells_of_a_device(hip):
    code, info = told(hip)
    assert (code, info["problems"], info["runtime"]["name"]) == (0, [], "hip")
    assert info["runtime"]["driver_version"] == "7.2"
    device = info["devices"][1]
    assert (device["uuid"], device["pci_bus_id"]) == ("GPU-fcb21f9b37a1d8a5", "0000:19:00.0")
    assert (device["compute_capability"], device["total_bytes"]) == (None, 1 << 30)
    assert set(by_name(info["libraries"])) == {"miopen", "hipblas", "hipblaslt", "hipsolver", "hipsparse"}
    assert by_name(info["libraries"])["miopen"]["handles"]["1"]["seconds"] > 0
    # One without a serial number.
    assert told(hip, FAKE_UUID="XX")[1]["devices"][0]["uuid"] is None


def test_hip_leaves_the_current_device(hip):
    hip.run("telling/info_on_a_driver.py", "leaves_hips_current_device")


# Frameworks.


def framework(name, devices=1):
    return next(each for each in frameworks.gather(devices) if each.name == name)


def fake_torch(monkeypatch, backend):
    functions = {} if backend is None else {"_cuda_getAllocatorBackend": lambda: backend}
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace(**functions), __version__="2.11.0"))


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("native", "PyTorch's own (native)"),
        ("cudaMallocAsync", "the driver's pool (cudaMallocAsync)"),
        ("pluggable", "pluggable, which is not gpupool's"),
        (None, "none: PyTorch was built without CUDA"),
    ],
)
def test_pytorchs_allocator(monkeypatch, backend, said):
    fake_torch(monkeypatch, backend)
    monkeypatch.setattr(place, "_is_taken", False)
    torch = framework("torch")
    assert (torch.imported, torch.allocator, torch.uses_gpupool) == (True, said, False)


def test_gpupool_in_pytorch(monkeypatch):
    fake_torch(monkeypatch, "native")
    monkeypatch.setattr(place, "_is_taken", True)
    assert (framework("torch").allocator, framework("torch").uses_gpupool) == ("gpupool", True)
    monkeypatch.setattr(place, "_is_taken", False)
    monkeypatch.setattr(pools, "_inside", 2)
    assert framework("torch").allocator == "PyTorch's own (native); gpupool in 2 block(s) of gpupool.torch.using"


def test_a_framework_that_cannot_be_asked_spoils_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setattr(place, "_is_taken", False)
    torch = framework("torch")
    assert torch.allocator.startswith("cannot be told: AttributeError: ")
    assert torch.uses_gpupool is None


def test_a_framework_that_is_not_imported_has_no_allocator(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    torch = framework("torch")
    assert (torch.imported, torch.allocator, torch.uses_gpupool) == (False, None, None)


@pytest.fixture
def run(tmp_path):
    """Return what runs a program with real frameworks over a double of the driver."""
    return framework_machine(tmp_path)


@pytest.mark.parametrize(
    ("module", "whose"), [("cupy", "cupys"), ("rmm", "rmms"), ("numba_cuda", "numbas"), ("cuda.core", "cuda_cores")]
)
def test_a_real_frameworks_allocator(run, module, whose):
    framework_of = pytest.importorskip(module)
    run("frameworks/allocators.py", whose)
    if module == "cupy":
        assert framework_of.__version__ in framework("cupy").packages.values()


# The answer's form.


def test_json_has_the_same_as_the_object():
    info = gpupool.info()
    assert json.loads(info.to_json()) == json.loads(json.dumps(info.to_dict()))
    assert info.to_dict()["ok"] is info.ok
    assert (info.schema, info.version) == (1, gpupool.__version__)


def folded(paragraph, *margins):
    lines = list(text._fold(paragraph, *margins))
    assert max(map(len, lines)) <= 100
    return lines


def test_what_is_too_long_goes_to_the_next_line():
    path = "/" + "/".join(f"folder-{number:02}" for number in range(7)) + "/libcudnn.so.9"
    assert len(path) == 84
    # A path stays whole where it can.
    assert folded(f"a word or two: {path} and something more", "  ", "    ") == [
        "  a word or two:",
        f"    {path} and",
        "    something more",
    ]
    assert folded("first line\nsecond", "  ", "    ") == ["  first line", "    second"]


def test_a_path_that_fits_no_line_is_cut_after_a_folder():
    path = "/" + "/".join(f"folder-{number:02}" for number in range(22)) + "/libcudnn.so.9"
    lines = folded(path, "    ")
    assert len(lines) == 3
    assert all(line.endswith("/") for line in lines[:-1])
    assert "".join(line.strip() for line in lines) == path
    assert "".join(line.strip() for line in folded("x" * 250, "  ")) == "x" * 250


def test_a_pipe_that_was_closed_is_no_crash():
    done = start_program("command_line/info_into_a_closed_pipe.py")
    assert (done.returncode, done.stderr) == (1, "")
