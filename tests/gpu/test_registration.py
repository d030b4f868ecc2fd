"""Segments that are registered by their address: each is one allocation of the driver's, and NCCL reduces from it."""

import ctypes
import json

import gpupool
import pytest
from gpu_helpers import EXAMPLES, cupy, import_or_skip, run_loud_program
from processes import start_python

MIB = 1 << 20
BENCHES = EXAMPLES.parent / "benches"


def allocation_at(address):
    """Return what the driver calls the physical memory at an address."""
    driver, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    assert driver.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(address)) == 0
    assert driver.cuMemRelease(handle) == 0
    return handle.value


@pytest.mark.device_memory(gib=3)
def test_a_segment_is_one_allocation_of_the_drivers_until_the_trim():
    pool, told = gpupool.MemPool(no_split=True), []
    callback = pool.on_segment(told.append)
    pool.empty(2 * MIB)
    buffer = pool.empty(600 * MIB)
    assert [(event.kind, event.nbytes) for event in told] == [("added", 2 * MIB), ("added", 600 * MIB)]
    first = allocation_at(buffer.ptr)
    assert {allocation_at(buffer.ptr + offset) for offset in range(0, 600 * MIB, 2 * MIB)} == {first}
    address = buffer.ptr
    del buffer
    assert gpupool.empty_cache() >= 0
    gpupool.sleep()
    gpupool.wake()
    again = pool.empty(600 * MIB)
    assert (again.ptr, allocation_at(again.ptr), len(told)) == (address, first, 2)
    again.fill(1)
    del again
    cupy.cuda.Device().synchronize()
    assert pool.trim() == 602 * MIB
    assert sorted(event.nbytes for event in told[2:]) == [2 * MIB, 600 * MIB]
    callback.remove()


@pytest.fixture
def two_gpus():
    """Skip without PyTorch, which brings NCCL, or a second GPU."""
    import_or_skip("torch")
    if gpupool.device_count() < 2:
        pytest.skip("needs 2 GPUs")


@pytest.mark.alone
@pytest.mark.timeout(120)
def test_nccl_adds_what_is_registered_as_it_comes(two_gpus):
    done = start_python(EXAMPLES / "nccl_registered_pool.py", "--mib", "64", timeout=100, NCCL_NVLS_ENABLE="0")
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    assert "0 wrong numbers" in done.stdout
    assert "deregistered before it went" in done.stdout


@pytest.mark.alone
@pytest.mark.timeout(120)
def test_pytorch_registers_a_pool(two_gpus):
    print(run_loud_program("pytorch/distributed_training.py", "registered", 2))


@pytest.mark.alone
@pytest.mark.timeout(120)
def test_the_bench_ends_with_a_ratio(two_gpus):
    done = start_python(BENCHES / "nccl.py", "--mib", "16", "--rounds", "3", timeout=100, NCCL_NVLS_ENABLE="0")
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    print(last)
    assert last["ratio"] > 0
