"""Processes on one device that know of each other, and give memory back before one fails."""

import pytest
from running import functions_of, run_program

# The device of all processes of a test.
SMALL = str(64 << 20)


@pytest.fixture
def together(tmp_path):
    """Return variables for processes that have one device, and meet nobody else."""
    folders = {name: tmp_path / name for name in ("device", "neighbours")}
    for folder in folders.values():
        folder.mkdir()
    return {
        "GPUPOOL_HOST_MEMORY": SMALL,
        "GPUPOOL_HOST_SHARED": str(folders["device"]),
        "GPUPOOL_NEIGHBOURS": str(folders["neighbours"]),
        # On a busy machine nobody is passed by that is not stopped.
        "GPUPOOL_NEIGHBOUR_DEADLINE_MS": "4000",
    }


@pytest.mark.parametrize("case", functions_of("neighbours/give.py"))
def test_a_process_without_memory_is_given_what_others_can_do_without(together, case):
    if case == "nobody_is_asked_by_one_that_is_no_neighbour":
        together["GPUPOOL_NEIGHBOURS"] = "0"
    run_program("neighbours/give.py", case, **together)
