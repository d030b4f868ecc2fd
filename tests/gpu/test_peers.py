"""A GPU that gets access to the memory of another while threads work there: its kernels read and write every block."""

import gpupool
import pytest
from gpu_helpers import cupy, run_program

pytestmark = pytest.mark.device_memory(gib=5)

# Access is given once in a process, and each has a few of the orders that threads' calls can come in.
PROCESSES = 8


@pytest.mark.parametrize("process", range(PROCESSES))
def test_the_peer_reads_every_word_of_threads_that_grow_and_sleep(process):
    if gpupool.device_count() < 2 or not cupy.cuda.runtime.deviceCanAccessPeer(1, 0):
        pytest.skip("needs two GPUs that reach each other")
    run_program("peers/enabled_in_the_midst.py")
