"""What `gpupool top` counts on a real GPU."""

import gpupool
import pytest
from gpu_helpers import run_program
from gpupool import _native
from gpupool._cli.top.nvml import Nvml

MIB = 1 << 20


def test_it_makes_no_context():
    run_program("telling/top_without_a_context.py")


def test_nvml_counts_what_this_process_holds():
    info = _native.device_info(0)
    if Nvml().memory(info["uuid"]) is None:
        pytest.skip("needs a device with memory that NVML counts")
    with gpupool.MemPool(reserve=256 * MIB):
        used, free = Nvml().memory(info["uuid"])
        assert used >= 256 * MIB
        # What the driver keeps for itself is in neither.
        assert abs(used + free - info["total_bytes"]) <= 64 * MIB
