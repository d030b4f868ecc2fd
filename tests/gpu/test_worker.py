"""A worker's settings on a real GPU, each in a process of its own."""

from gpu_helpers import pool_or_skip, run_python


def test_setting_up_before_devices_are_known_starts_no_driver():
    code = """
import os
import gpupool
from gpupool.worker import Settings, set_up, stats

limits = {"memory_fraction": 0.5, "memory_bytes": 1 << 30, "handle_limits": {"cublas": 2}}
set_up(Settings(enable=["cupy"], warm={"cublas": 1}, **limits), before_devices=True)
print(stats()["runtime"])
# A driver that had been started would go on to see the GPUs it saw then.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["GPUPOOL_RUNTIME"] = "cuda"
try:
    print(gpupool.runtime())
except gpupool.RuntimeUnavailable:
    print("no device")
"""
    assert run_python("-c", code).split("\n") == ["None", "no device", ""]


def test_memory_and_handles_are_as_the_settings_say():
    pool_or_skip("cublas")
    code = """
import gpupool
from gpupool.worker import Settings, set_up, stats, tear_down

set_up(Settings(memory_bytes=64 << 20, handle_limits={"cublas": 3}, warm={"cublas": 2}))
assert (gpupool.cublas.limit, stats()["handles"]["cublas"]["idle"]) == (3, 2)
stream = gpupool.Stream()
gpupool.empty(32 << 20, stream).free()
try:
    gpupool.empty(128 << 20, stream)
except gpupool.OutOfMemory as error:
    print(error.requested_bytes)
assert 32 << 20 <= stats()["memory"][0]["peak_reserved_bytes"] <= 64 << 20
tear_down()
gpupool.empty(128 << 20, stream).free()
print(gpupool.cublas.limit, stats()["runtime"])
"""
    assert run_python("-c", code).split("\n") == [str(128 << 20), "None cuda", ""]


def test_frameworks_that_are_enabled_take_gpupools_memory():
    code = """
from gpupool.worker import Settings, set_up, stats, tear_down

set_up(Settings(enable=["cupy"], memory_bytes=256 << 20))
import cupy

kept = cupy.ones(1 << 20)
assert float(kept.sum()) == 1 << 20
assert stats()["memory"][0]["live_bytes"] >= kept.nbytes
tear_down()
print(stats()["settings"])
"""
    assert run_python("-c", code) == "None\n"
