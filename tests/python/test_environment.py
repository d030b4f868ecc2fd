"""Environment variables: an error names the variable whose value cannot be right."""

import os
import re
from pathlib import Path

import pytest
from forks import Machine, run_bare_program

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"

# As bytes in the environment need not be text.
NOT_UTF8 = os.fsdecode(b"\xff\xfe")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("GPUPOOL_HOST_DEVICES", value) for value in ("0", "4097", "-1", "many", "1.5", NOT_UTF8)),
        *(("GPUPOOL_HOST_MEMORY", value) for value in ("0", str(2**64 - 1), str(2**64), "-1", "16 GiB", NOT_UTF8)),
        ("GPUPOOL_HOST_SHARED", "/nowhere"),
        *(("GPUPOOL_NVTX", value) for value in ("on", "yes", "2", "01", NOT_UTF8)),
        *(("GPUPOOL_RUNTIME", value) for value in ("gpu", "Host", NOT_UTF8)),
    ],
)
def test_a_value_that_cannot_be_right(variable, value):
    variables = {"GPUPOOL_RUNTIME": "host", variable: value}
    start = (
        f"InvalidValue {variable}='{value}' " if value != NOT_UTF8 else f"InvalidValue {variable}='\\xFF\\xFE' is not"
    )
    run_bare_program("loading/drivers.py", "gives_none", "simulated", start, **variables)


@pytest.mark.parametrize("value", ["0", "513", "-1", "4 MiB", NOT_UTF8])
def test_an_extent_of_so_many_pages_there_cannot_be(value):
    variables = {"GPUPOOL_RUNTIME": "host", "GPUPOOL_EXTENT_PAGES": value}
    run_bare_program("process/limits.py", "of_extents", **variables)


@pytest.mark.parametrize(
    "variables",
    [
        {"GPUPOOL_HOST_DEVICES": "4096", "GPUPOOL_HOST_MEMORY": str(2**47)},
        {"GPUPOOL_EXTENT_PAGES": "512"},
        {"GPUPOOL_HOST_MEMORY": "1"},
        {"GPUPOOL_NVTX": "0"},
        {"GPUPOOL_HOST_DEVICES": "", "GPUPOOL_HOST_MEMORY": "", "GPUPOOL_NVTX": ""},
    ],
)
def test_a_value_at_the_edge_or_an_empty_one(variables):
    run_bare_program("process/limits.py", "none", **{"GPUPOOL_RUNTIME": "host", **variables})


FIRST_USES = ["empty", "empty_pinned", "handle", "MemPool", "memory_stats", "Stream", "current_stream", "runtime"]


@pytest.mark.parametrize("first", FIRST_USES)
def test_a_program_that_finds_no_gpu_is_warned_once(first):
    told = run_bare_program("telling/no_gpu.py", first, GPUPOOL_RUNTIME=None).splitlines()
    if told[-1] != "host":
        pytest.skip("this machine has a GPU")
    [warning, _] = told
    assert warning.startswith("RuntimeWarning True no GPU was found, so gpupool simulates devices")
    assert "GPUPOOL_RUNTIME=host" in warning
    assert run_bare_program("telling/no_gpu.py", first, GPUPOOL_RUNTIME="").splitlines() == told, "an empty one is none"
    assert run_bare_program("telling/no_gpu.py", first).splitlines() == ["host"], "that is what was asked for"


def test_a_lack_of_addresses_is_a_lack_of_memory():
    run_bare_program("process/limits.py", "of_addresses", GPUPOOL_RUNTIME="host")


def test_pages_that_no_thread_could_make_ready_are_not_made_later():
    run_bare_program("process/limits.py", "of_a_thread_for_ready_pages", GPUPOOL_RUNTIME="host")


@pytest.mark.parametrize("gibibytes", [40, 68, 70, 1100])
def test_few_addresses_are_not_all_the_devices(gibibytes):
    run_bare_program("process/limits.py", "of_few_addresses", str(gibibytes), GPUPOOL_RUNTIME="host")


# Values that name no library.
NO_FILES = ["garbage", "/nowhere", "-1", "a\nb", "/etc/passwd", NOT_UTF8, "x" * 9000]
LIBRARIES = {
    "cuda": (
        *("cublas", "cublaslt", "cudnn", "cudss", "cusolver", "cusparse", "cusparselt"),
        *("custatevec", "cutensor", "cutensornet"),
    ),
    "hip": ("hipblas", "hipblaslt", "hipsolver", "hipsparse", "miopen"),
}


@pytest.mark.parametrize("value", NO_FILES, ids=lambda value: ascii(value[:20]))
@pytest.mark.parametrize("platform", LIBRARIES)
def test_a_path_that_is_no_librarys_is_told_with_its_variable(platform, value, tmp_path):
    machine = Machine(platform, tmp_path)
    shown = value if value != NOT_UTF8 else "\ufffd\ufffd"
    for name in LIBRARIES[platform]:
        variable = f"GPUPOOL_{name.upper()}_PATH"
        said = f"LibraryNotFound {name} was not found.\n  tried {shown} (from {variable}): "
        machine.run("loading/drivers.py", "gives_none", name, said, **{variable: value})


@pytest.mark.parametrize("value", NO_FILES, ids=lambda value: ascii(value[:20]))
def test_a_path_that_is_no_hips_is_told_with_its_variable(value, tmp_path):
    shown = value if value != NOT_UTF8 else "\ufffd\ufffd"
    said = f"RuntimeUnavailable the hip runtime is unavailable: no HIP library was found ({shown}: "
    variables = {"GPUPOOL_RUNTIME": "hip", "GPUPOOL_AMDHIP64_PATH": value}
    machine = Machine("hip", tmp_path)
    machine.run("loading/drivers.py", "gives_none", "hipblas", said, "from GPUPOOL_AMDHIP64_PATH", **variables)


def test_every_variable_of_the_page_is_tried_with_garbage():
    table = PAGE.read_text().split("## Environment variables")[1].split("gpupool also reads variables")[0]
    paths = {f"GPUPOOL_{name.upper()}_PATH" for names in LIBRARIES.values() for name in names}
    tried = {
        *paths,
        "GPUPOOL_AMDHIP64_PATH",
        *("GPUPOOL_EXTENT_PAGES", "GPUPOOL_HOST_DEVICES", "GPUPOOL_HOST_MEMORY", "GPUPOOL_NVTX", "GPUPOOL_RUNTIME"),
        "GPUPOOL_HOST_SHARED",
        # In test_neighbours.py.
        "GPUPOOL_NEIGHBOURS",
        *(f"GPUPOOL_NEIGHBOUR_{name}" for name in ("NAME", "GUARANTEE", "MOST", "PRIORITY", "DEADLINE_MS")),
        # In test_hip.py, test_enable_at_start.py and test_worker.py.
        *("GPUPOOL_HIP_VIRTUAL_MEMORY", "GPUPOOL_ENABLE", "GPUPOOL_WORKER"),
    }
    assert set(re.findall(r"`(GPUPOOL_\w+)`", table)) == tried
