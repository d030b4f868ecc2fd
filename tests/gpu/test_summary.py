"""The summary against the driver's own numbers: what gpupool, other processes and frameworks hold of a GPU."""

import subprocess
import sys

import gpupool
import pytest
from gpu_helpers import PATIENCE, cupy, import_or_skip, pool_or_skip, run_python

MIB = 1 << 20
# What the driver may take or give back by itself meanwhile.
SLACK = 8 * MIB

OTHER_PROCESS = """
import sys
import cupy

kept = cupy.cuda.alloc(512 << 20)
cupy.cuda.Device().synchronize()
print("ready", flush=True)
sys.stdin.readline()
"""


def summary(device=0):
    (found,) = gpupool.memory_summary(device).devices
    return found


def assert_adds_up(device):
    """Each number is the sum of its parts."""
    known = device.reserved_bytes + device.handle_bytes + device.workspace_bytes
    assert device.used_bytes == device.total_bytes - device.free_bytes
    assert known + device.other_bytes == device.used_bytes, device
    for held in (device, *device.pools):
        assert held.reserved_bytes == held.live_bytes + held.cached_bytes + held.releasing_bytes


@pytest.mark.alone
def test_the_driver_says_the_same():
    buffer = gpupool.empty(64 * MIB)
    device = summary()
    free, total = cupy.cuda.runtime.memGetInfo()
    assert (device.free_bytes, device.total_bytes) == (free, total)
    assert_adds_up(device)
    assert device.other_bytes > 0, "at least a context"
    assert device.driver_error is None
    del buffer


@pytest.mark.alone
def test_what_gpupool_takes_and_gives_back_is_not_the_others():
    gpupool.empty_cache()
    before = summary()
    buffer = gpupool.empty(256 * MIB)
    during = summary()
    assert during.live_bytes == before.live_bytes + 256 * MIB
    assert abs(during.other_bytes - before.other_bytes) <= SLACK
    stream = gpupool.Stream()
    segments = gpupool.MemPool(segments=True)
    with gpupool.use_mem_pool(segments):
        second = gpupool.empty(128 * MIB, stream)
    assert abs(summary().other_bytes - before.other_bytes) <= SLACK
    del buffer, second
    gpupool.empty_cache()
    cupy.cuda.Device().synchronize()
    gpupool.empty_cache()
    after = summary()
    assert_adds_up(after)
    assert abs(after.other_bytes - before.other_bytes) <= SLACK
    assert after.releasing_bytes == 0


@pytest.mark.alone
def test_another_processs_memory_is_the_others():
    gpupool.empty(1)
    before = summary()
    command = [sys.executable, "-W", "ignore", "-c", OTHER_PROCESS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "ready\n"
        during = summary()
        other.communicate("\n", timeout=60 * PATIENCE)
    assert_adds_up(during)
    # With its context and kernels.
    assert 512 * MIB <= during.other_bytes - before.other_bytes <= 4096 * MIB
    assert during.reserved_bytes == before.reserved_bytes
    assert abs(summary().other_bytes - before.other_bytes) <= SLACK


@pytest.mark.alone
@pytest.mark.parametrize("name", ["cublas", "cusolver", "cudnn"])
def test_handles_are_told_by_library(name):
    pool_or_skip(name)
    code = f"""
import gpupool

stream = gpupool.Stream()
gpupool.empty(1, stream).free()
before = gpupool.memory_summary(0).devices[0]
gpupool.{name}.handle(stream)
gpupool.{name}.warm(2)
after = gpupool.memory_summary(0).devices[0]
(library,) = [each for each in after.libraries if each.library == "{name}"]
assert (library.created, library.held, library.idle, library.peak_in_use) == (3, 1, 2, 1), library
assert library.device_bytes == library.peak_device_bytes == after.handle_bytes >= 16 << 20, library
# Loading the library may take some too, of which no handle's creation knows.
moved = after.other_bytes - before.other_bytes
assert -(8 << 20) <= moved <= 256 << 20, moved
gpupool.{name}.trim()
(library,) = [each for each in gpupool.memory_summary(0).devices[0].libraries if each.library == "{name}"]
assert library.device_bytes < library.peak_device_bytes
gpupool.reset_peak_memory_stats(0)
(library,) = [each for each in gpupool.memory_summary(0).devices[0].libraries if each.library == "{name}"]
assert library.device_bytes == library.peak_device_bytes
"""
    run_python("-c", code)


def test_cupys_own_pool_is_named():
    code = """
import cupy
import gpupool

gpupool.empty(1).free()
assert gpupool.memory_summary(0).devices[0].frameworks == ()
kept = cupy.zeros(64 << 20, dtype=cupy.uint8)
device = gpupool.memory_summary(0).devices[0]
(told,) = device.frameworks
assert (told.framework, told.reserved_bytes) == ("cupy", cupy.get_default_memory_pool().total_bytes())
assert device.other_bytes >= told.reserved_bytes >= 64 << 20
del kept
cupy.get_default_memory_pool().free_all_blocks()
gpupool.cupy.enable()
kept = cupy.zeros(64 << 20, dtype=cupy.uint8)
device = gpupool.memory_summary(0).devices[0]
assert device.frameworks == () and device.live_bytes >= 64 << 20
"""
    run_python("-c", code)


def test_pytorchs_own_memory_is_named_and_what_it_has_from_gpupool_is_not_told_twice():
    import_or_skip("torch")
    code = """
import gpupool
import torch

gpupool.empty(1).free()
assert gpupool.memory_summary(0).devices[0].frameworks == (), "PyTorch was not used yet"
kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
device = gpupool.memory_summary(0).devices[0]
(told,) = device.frameworks
assert (told.framework, told.reserved_bytes) == ("torch", torch.cuda.memory_reserved(0)), told
assert device.other_bytes >= told.reserved_bytes >= 64 << 20
pool = gpupool.MemPool()
with gpupool.torch.using(pool):
    fed = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
device = gpupool.memory_summary(0).devices[0]
(again,) = device.frameworks
assert again.reserved_bytes == told.reserved_bytes, (again, told)
(found,) = [each for each in device.pools if each.id == pool.id]
assert sum(stream.live_bytes for stream in found.streams if stream.is_feed) == found.live_bytes >= 128 << 20
"""
    run_python("-c", code)


def test_pytorch_on_gpupool_has_nothing_of_its_own():
    import_or_skip("torch")
    code = """
import gpupool
import torch

gpupool.torch.enable()
kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
device = gpupool.memory_summary(0).devices[0]
assert device.frameworks == () and device.live_bytes >= 64 << 20, device
"""
    run_python("-c", code)


def test_a_summary_spoils_no_capture():
    stream = cupy.cuda.Stream(non_blocking=True)
    array = cupy.zeros(1000)
    # Written on the default stream, for which this one does not wait.
    cupy.cuda.Device().synchronize()
    with stream:
        array += 1
    stream.synchronize()
    with stream:
        stream.begin_capture()
        array += 1
        assert_adds_up(summary())
        assert "gpupool_up 1" in gpupool.prometheus.text()
        graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    assert float(array.sum()) == 2000
