"""The summary against the driver's own numbers: what gpupool, other processes and frameworks hold of a GPU."""

import gpupool
import pytest
from gpu_helpers import cupy, import_or_skip, pool_or_skip, run_prepared_program, run_program

MIB = 1 << 20
# What the driver may take or give back by itself meanwhile.
SLACK = 8 * MIB


def summary(device=0):
    (found,) = gpupool.memory_summary(device).devices
    return found


def assert_adds_up(device):
    """Check that each number is the sum of its parts."""
    known = device.reserved_bytes + device.handle_bytes + device.workspace_bytes
    assert device.used_bytes == device.total_bytes - device.free_bytes
    assert known + device.other_bytes == device.used_bytes, device
    for held in (device, *device.pools):
        assert held.reserved_bytes == held.live_bytes - held.asleep_bytes + held.cached_bytes + held.releasing_bytes


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
    run_program("telling/summary_beside_another_process.py")


@pytest.mark.alone
@pytest.mark.parametrize("name", ["cublas", "cusolver", "cudnn"])
def test_handles_are_told_by_library(name):
    pool_or_skip(name)
    run_program("telling/summary_of_handles.py", name)


def test_cupys_own_pool_is_named():
    run_program("telling/summary_of_cupy.py")


def test_pytorchs_own_memory_is_named_and_what_it_has_from_gpupool_is_not_told_twice():
    import_or_skip("torch")
    run_prepared_program("telling/summary_of_pytorch.py", "with_a_pool_of_gpupools")


def test_pytorch_on_gpupool_has_nothing_of_its_own():
    import_or_skip("torch")
    run_prepared_program("telling/summary_of_pytorch.py", "on_gpupool")


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
        # What `text` has prometheus_client write.
        assert gpupool.prometheus._samples(20, 0)["gpupool_up"] == [({}, 1)]
        graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    assert float(array.sum()) == 2000
