"""ROCm's libraries over ABI doubles of them and of HIP: where they are, and what is theirs.

What they have in common with other libraries is in test_platforms.py.
"""

from dataclasses import replace
from pathlib import Path

import machines
import pytest
from abi import build_driver, build_library
from forks import Machine
from programs.shared.libraries import CUDA_LIBRARIES, LIBRARIES
from running import NO_GPU

PROGRAM = "platforms/rocm_libraries.py"
ROCM = [name for name in LIBRARIES if name not in CUDA_LIBRARIES]
EVERY = pytest.mark.parametrize("name", ROCM)
BY_STREAM = [name for name in ROCM if LIBRARIES[name].by_stream]
# The names of the files in ROCm 5, 6 and 7.
SONAMES = {
    "hipblas": ("libhipblas.so.1", "libhipblas.so.2", "libhipblas.so.3"),
    "hipblaslt": ("libhipblaslt.so.0", "libhipblaslt.so.1"),
    "hipsolver": ("libhipsolver.so.0", "libhipsolver.so.1"),
    "hipsparse": ("libhipsparse.so.0", "libhipsparse.so.1", "libhipsparse.so.4"),
    "miopen": ("libMIOpen.so.1",),
}


@pytest.fixture
def machine(tmp_path):
    """Return a machine with HIP."""
    return Machine("hip", tmp_path)


@pytest.fixture
def check(machine):
    """Run one of the programs about these libraries there."""
    return lambda what, *arguments, **variables: machine.run(PROGRAM, what, *arguments, **variables)


@pytest.fixture
def is_found(machine):
    """Check that a library is found there, as this file."""
    return lambda name, file, **variables: machine.run("loading/libraries.py", "is_found", name, file, **variables)


@EVERY
def test_it_is_found_in_pytorchs_wheel(is_found, tmp_path, name):
    file = build_library(name, tmp_path / "other/torch/lib" / f"{SONAMES[name][0].partition('.')[0]}.so")
    is_found(name, file, PYTHONPATH=str(tmp_path / "other"))


@pytest.mark.parametrize(("name", "soname"), [(name, soname) for name in SONAMES for soname in SONAMES[name]])
def test_each_version_of_the_toolkit_has_it(is_found, tmp_path, name, soname):
    file = build_library(name, tmp_path / "rocm/lib" / soname)
    is_found(name, file, PYTHONPATH=None, ROCM_PATH=str(tmp_path / "rocm"))


@EVERY
def test_the_environment_names_it(is_found, tmp_path, name):
    file = build_library(name, tmp_path / "mine.so")
    is_found(name, file, **{f"GPUPOOL_{name.upper()}_PATH": str(file)})


@EVERY
def test_where_it_is_missing_every_place_is_told(check, name):
    soname = Path(LIBRARIES[name].file).name
    places = (f"/nowhere/lib/{soname}", f"{soname}: ", f"/opt/rocm/lib/{soname}")
    said = [*(f"tried {place}" for place in places), "rocm[libraries]", f"GPUPOOL_{name.upper()}_PATH"]
    check("is_missing", name, *said, PYTHONPATH=None, ROCM_PATH="/nowhere")


@pytest.mark.parametrize("name", BY_STREAM)
@pytest.mark.parametrize(
    "case", ["a_thread_has_a_handle_for_each_of_eight_streams", "a_capture_on_a_ninth_stream_stays_whole"]
)
def test_of_a_stream_each(machine, check, name, case):
    machine.install(name)
    check(case, name)


@pytest.mark.parametrize("name", ["hipblaslt", "hipsparse"])
def test_the_version_is_told_once_a_handle_was_made(machine, check, name):
    machine.install(name)
    check("the_version_is_told_once_a_handle_was_made", name)


@pytest.mark.parametrize("name", ["hipblas", "hipsolver"])
def test_what_a_new_handle_has_in_another_version_is_set_back_too(machine, check, monkeypatch, name):
    # ROCm 7 allows rocBLAS no atomics by default, as 6 did; a variable of rocBLAS's turns either round.
    library = LIBRARIES[name]
    turned = [replace(setting, new=setting.other, other=setting.new) for setting in library.settings]
    monkeypatch.setitem(LIBRARIES, name, replace(library, settings=(*library.settings[:-1], turned[-1])))
    machine.install(name)
    others = [setting.other for setting in LIBRARIES[name].settings]
    check("all_that_can_be_set_is_set_back", name, *others)


@pytest.mark.parametrize("bytes_of_the_users", [None, "1048576"])
def test_a_workspace_of_the_owners_is_taken_back_and_the_librarys_own_left(machine, check, bytes_of_the_users):
    machine.install("hipblas")
    variables = {"ROCBLAS_DEVICE_MEMORY_SIZE": bytes_of_the_users}
    check("the_librarys_own_memory_is_never_set_anew", **variables)
    check("a_workspace_of_the_owners_is_taken_back", **variables)


def test_hipblas_before_rocm_7_takes_no_workspace(machine, check):
    old = build_library(
        "hipblas", machine.site_packages / "_rocm_sdk_libraries/lib/libhipblas.so.2", without="SET_OWN_WORKSPACE"
    )
    check("an_old_version_keeps_no_handle_from_being_lent", GPUPOOL_HIPBLAS_PATH=str(old))


def test_what_miopen_lacks_is_told_with_the_variable_that_names_it(machine, check, tmp_path):
    old = build_library("miopen", tmp_path / "old/libMIOpen.so.1", without="GET_STREAM")
    said = f"{old} (from GPUPOOL_MIOPEN_PATH) (loaded): lacks the symbol miopenGetStream, so it is too old"
    check("gives_no_handle", "miopen", "LibraryNotFound", said, GPUPOOL_MIOPEN_PATH=str(old))


@pytest.mark.parametrize("name", ["miopen", "cublas"])
def test_the_other_platforms_gpu_gives_no_handle(tmp_path, name):
    # Where both have a GPU, NVIDIA's comes first; the drivers are in one folder.
    machine = machines.Machine("hip", tmp_path)
    machine.install(name)
    runtime, other = "cuda", "hip"
    if name == "miopen":
        build_driver(machine.driver.parent)
        runtime, other = other, runtime
    start = f"RuntimeUnavailable the {runtime} runtime is unavailable: this process uses runtime {other}"
    machine.run(PROGRAM, "gives_no_handle", name, start, f"set GPUPOOL_RUNTIME={runtime} before it starts")


@pytest.mark.parametrize(
    ("start", "said", "variables"),
    [
        (
            "RuntimeUnavailable the hip runtime is unavailable: HIP sees no device",
            "gpupool simulates devices here (runtime host)",
            {"FAKE_FAIL": "hipInit=100", **NO_GPU},
        ),
        (
            "OutOfMemory out of memory on device 0: miopen: miopenCreate failed with miopenStatusAllocF",
            "Free: 0.0 MiB of 1.0 GiB",
            {"FAKE_FAIL": "miopenCreate=4", "FAKE_FREE_MIB": "0"},
        ),
    ],
    ids=["simulated", "out of memory"],
)
def test_why_there_is_no_handle(machine, check, start, said, variables):
    machine.install("miopen")
    check("gives_no_handle", "miopen", start, said, **variables)


def test_a_version_that_is_refused_is_told(machine, check):
    machine.install("miopen")
    check("a_version_that_is_refused_is_told")
