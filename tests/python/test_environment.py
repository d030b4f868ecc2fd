"""Environment variables: an error names the variable whose value cannot be right."""

import os

import pytest
from running import run_bare_program

# As bytes in the environment need not be text.
NOT_UTF8 = os.fsdecode(b"\xff\xfe")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("GPUPOOL_HOST_DEVICES", value) for value in ("0", "4097", "-1", "many", "1.5", NOT_UTF8)),
        *(("GPUPOOL_HOST_MEMORY", value) for value in ("0", str(2**64 - 1), str(2**64), "-1", "16 GiB", NOT_UTF8)),
        *(("GPUPOOL_NVTX", value) for value in ("on", "yes", "2", "01", NOT_UTF8)),
        *(("GPUPOOL_RUNTIME", value) for value in ("gpu", "Host", NOT_UTF8)),
    ],
)
def test_a_value_that_cannot_be_right(variable, value):
    variables = {"GPUPOOL_RUNTIME": "host", variable: value}
    start = (
        f"InvalidValue {variable}='{value}' " if value != NOT_UTF8 else f"InvalidValue {variable}='\\xFF\\xFE' is not"
    )
    run_bare_program("loading/drivers.py", "gives_none", "host", start, **variables)


@pytest.mark.parametrize(
    "variables",
    [
        {"GPUPOOL_HOST_DEVICES": "4096", "GPUPOOL_HOST_MEMORY": str(2**47)},
        {"GPUPOOL_HOST_MEMORY": "1"},
        {"GPUPOOL_NVTX": "0"},
        {"GPUPOOL_HOST_DEVICES": "", "GPUPOOL_HOST_MEMORY": "", "GPUPOOL_NVTX": "", "GPUPOOL_RUNTIME": ""},
    ],
)
def test_a_value_at_the_edge_or_an_empty_one(variables):
    run_bare_program("process/limits.py", "none", **{"GPUPOOL_RUNTIME": "host", **variables})


def test_a_lack_of_addresses_is_a_lack_of_memory():
    run_bare_program("process/limits.py", "of_addresses", GPUPOOL_RUNTIME="host")


@pytest.mark.parametrize("gibibytes", [40, 68, 70, 1100])
def test_few_addresses_are_not_all_the_devices(gibibytes):
    run_bare_program("process/limits.py", "of_few_addresses", str(gibibytes), GPUPOOL_RUNTIME="host")
