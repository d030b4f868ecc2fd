"""Processes on one GPU that give each other memory: the words of each, and the example."""

import os
import re

import pytest
from gpu_helpers import run_program, run_python

# How long the soak is; for a long one set it to 300.
SECONDS = int(os.environ.get("GPUPOOL_SOAK_SECONDS", "5"))
MIB = 2048


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
