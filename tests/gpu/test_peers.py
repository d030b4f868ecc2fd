"""A GPU that gets access to the memory of another while threads work there: its kernels read and write every block."""

import pytest
from gpu_helpers import run_program, skip_without_two_gpus

pytestmark = [pytest.mark.device_memory(gib=5), pytest.mark.many_driver_calls]

# Access is given once in a process, and each has a few of the orders that threads' calls can come in.
PROCESSES = 8


@pytest.mark.parametrize("process", range(PROCESSES))
def test_the_peer_reads_every_word_of_threads_that_grow_and_sleep(process):
    skip_without_two_gpus()
    run_program("peers/enabled_in_the_midst.py")
