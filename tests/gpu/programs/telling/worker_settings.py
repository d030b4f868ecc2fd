"""A worker's settings start no driver before its devices are known."""

import os
import sys

import gpupool
from errors import raised
from gpupool.worker import Settings, set_up, stats


def starts_no_driver_before_devices_are_known():
    limits = {"memory_fraction": 0.5, "memory_bytes": 1 << 30, "handle_limits": {"cublas": 2}, "guarantee": 1 << 20}
    set_up(Settings(enable=["cupy"], warm={"cublas": 1}, **limits), before_devices=True)
    runtime = stats()["runtime"]
    assert runtime is None, f"it started {runtime}"
    # A driver that had been started would go on to see the GPUs it saw then.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["GPUPOOL_RUNTIME"] = "cuda"
    raised(gpupool.RuntimeUnavailable, gpupool.runtime)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
