"""A worker's settings: what they start, what they hold to, and whose memory frameworks have."""

import importlib
import os
import sys

import gpupool
from errors import raised
from gpupool.worker import Settings, set_up, stats, tear_down


def starts_no_driver_before_devices_are_known():
    limits = {"memory_fraction": 0.5, "memory_bytes": 1 << 30, "handle_limits": {"cublas": 2}, "guarantee": 1 << 20}
    set_up(Settings(enable=["cupy"], warm={"cublas": 1}, **limits), before_devices=True)
    runtime = stats()["runtime"]
    assert runtime is None, f"it started {runtime}"
    # A driver that had been started would go on to see the GPUs it saw then.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["GPUPOOL_RUNTIME"] = "cuda"
    raised(gpupool.RuntimeUnavailable, gpupool.runtime)


def has_memory_and_handles_as_its_settings_say():
    set_up(Settings(memory_bytes=64 << 20, handle_limits={"cublas": 3}, warm={"cublas": 2}))
    assert gpupool.cublas.limit == 3, f"the limit is {gpupool.cublas.limit} handles"
    idle = stats()["handles"]["cublas"]["idle"]
    assert idle == 2, f"{idle} handles are idle"
    stream = gpupool.Stream()
    gpupool.empty(32 << 20, stream).free()
    error = raised(gpupool.OutOfMemory, gpupool.empty, 128 << 20, stream)
    assert error.requested_bytes == 128 << 20, f"{error.requested_bytes} bytes are told to be requested"
    peak = stats()["memory"][0]["peak_reserved_bytes"]
    assert 32 << 20 <= peak <= 64 << 20, f"the peak is {peak} bytes"
    tear_down()
    gpupool.empty(128 << 20, stream).free()
    assert gpupool.cublas.limit is None, f"at the end the limit is {gpupool.cublas.limit} handles"
    assert stats()["runtime"] == "cuda", f"the runtime is {stats()['runtime']}"


def gives_frameworks_gpupools_memory():
    set_up(Settings(enable=["cupy"], memory_bytes=256 << 20))
    cupy = importlib.import_module("cupy")
    kept = cupy.ones(1 << 20)
    assert float(kept.sum()) == 1 << 20, "the sum is wrong"
    live = stats()["memory"][0]["live_bytes"]
    assert live >= kept.nbytes, f"CuPy's array is not in gpupool's {live} bytes"
    tear_down()
    settings = stats()["settings"]
    assert settings is None, f"at the end it has the settings {settings}"


if __name__ == "__main__":
    globals()[sys.argv[1]]()
