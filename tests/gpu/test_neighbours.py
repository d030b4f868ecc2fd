"""Processes on one GPU that give each other memory: the words of each, and the example."""

import os
import re

import gpupool
import pytest
from gpu_helpers import HERE, run_program, run_python

# How long the soak is; for a long one set it to 300.
SECONDS = int(os.environ.get("GPUPOOL_SOAK_SECONDS", "5"))
MIB = 2048
# Where programs of the simulated devices' tests find what they share.
SHARED = HERE.parent / "python" / "programs" / "shared"


@pytest.mark.alone
def test_peaks_of_two_workers_take_turns(examples):
    _first, *turns, last = run_python(str(examples / "two_workers.py")).splitlines()
    given = [int(re.search(r" gave (\d+) MiB to ", turn)[1]) for turn in turns]
    assert len(given) == 3
    assert min(given) >= 192
    assert last.startswith("all 4 peaks were right, in ")


@pytest.mark.alone
@pytest.mark.timeout(SECONDS + 110)
def test_four_processes_without_memory_for_all_keep_every_word():
    print(run_program("neighbours/soak.py", MIB, 0, SECONDS, timeout=SECONDS + 100), end="")


@pytest.mark.alone
@pytest.mark.parametrize(
    "case",
    [
        "both_devices_are_told_apart",
        "memory_is_given_on_the_first_device_alone",
        "memory_is_given_on_the_second_device_alone",
    ],
)
def test_neighbours_on_two_devices_give_where_memory_is_short(case, tmp_path):
    if gpupool.device_count() < 2:
        pytest.skip("needs two GPUs")
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(SHARED)]))
    variables = {"GPUPOOL_NEIGHBOURS": str(tmp_path), "GPUPOOL_NEIGHBOUR_DEADLINE_MS": "4000"}
    run_program("neighbours/two_devices.py", case, PYTHONPATH=path, **variables)
