"""Pools that sleep on a GPU: contents, graphs captured before, and two processes that take turns."""

import contextlib
import gc
import re
import subprocess
import sys
from pathlib import Path

import gpupool
import pytest
from gpu_helpers import PROGRAMS, cupy, import_or_skip

pytestmark = pytest.mark.device_memory(gib=4)

MIB, GIB = 1 << 20, 1 << 30
CYCLES = 10


@pytest.fixture
def pool():
    """Return a pool, and see that nothing of it is left."""
    gc.collect()
    gpupool.empty_cache()
    before = gpupool.memory_stats().live_blocks
    pool = gpupool.MemPool()
    yield pool
    pool.wake()
    gc.collect()
    cupy.cuda.Device().synchronize()
    pool.close()
    assert gpupool.memory_stats().live_blocks == before


def words_in(pool, nbytes, first):
    """Return an array of the pool with the numbers from ``first`` on."""
    with gpupool.cupy.using(pool):
        return cupy.arange(first, first + nbytes // 8, dtype=cupy.uint64)


def count_wrong(array, first):
    """Return how many words of an array are not the numbers from ``first`` on."""
    return int(cupy.count_nonzero(array - cupy.arange(array.size, dtype=cupy.uint64) != cupy.uint64(first)))


def free_bytes():
    """Return what the driver says is free."""
    return cupy.cuda.Device().mem_info[0]


# It compares what the driver says is free.
@pytest.mark.alone
def test_contents_come_back_cycle_after_cycle(pool):
    sizes = [4096, 100_000, MIB, 20 * MIB, 600 * MIB]
    arrays = [words_in(pool, nbytes, number << 40) for number, nbytes in enumerate(sizes)]
    addresses = [array.data.ptr for array in arrays]
    for _ in range(CYCLES):
        before = free_bytes()
        went = pool.sleep()
        assert went >= sum(sizes) - MIB
        assert free_bytes() >= before + went - 8 * MIB
        assert pool.wake() >= sum(sizes) - MIB
        assert [array.data.ptr for array in arrays] == addresses
        assert [count_wrong(array, number << 40) for number, array in enumerate(arrays)] == [0] * len(arrays)
    # What came back serves others as ever.
    arrays.clear()
    gc.collect()
    with gpupool.cupy.using(pool):
        assert int(cupy.ones(50 * MIB, dtype=cupy.uint8).sum(dtype=cupy.int64)) == 50 * MIB


def test_a_graph_captured_before_replays_between_cycles(pool):
    count = 64 * MIB // 8
    source, target = words_in(pool, 8 * count, 1), words_in(pool, 8 * count, 0)
    stream = cupy.cuda.Stream(non_blocking=True)
    add = cupy.ElementwiseKernel("uint64 source", "uint64 target", "target = target + source", "add_in_place")
    with stream:
        add(source, target)
        stream.synchronize()
        target[:] = 0
        stream.begin_capture()
        add(source, target)
        graph = stream.end_capture()
        for turn in range(1, CYCLES + 1):
            graph.launch(stream)
            stream.synchronize()
            pool.sleep()
            pool.wake()
            expected = turn * (cupy.arange(count, dtype=cupy.uint64) + 1)
            assert int(cupy.count_nonzero(target - expected)) == 0, f"after {turn} turns"
        # It may be running still when sleep is asked for, which waits for it.
        graph.launch(stream)
        pool.sleep()
        pool.wake()
        assert int(cupy.count_nonzero(target - (CYCLES + 1) * (cupy.arange(count, dtype=cupy.uint64) + 1))) == 0
    del graph


def test_a_whole_device_sleeps_and_handles_are_made_again(pool):
    array = words_in(pool, 64 * MIB, 3)
    own = gpupool.empty(64 * MIB)
    view = cupy.asarray(own)
    view[:] = 9
    if gpupool.cublas.available:
        with gpupool.cublas.lease():
            pass
    went = gpupool.sleep()
    assert went >= 128 * MIB
    assert pool.is_asleep
    with pytest.raises(gpupool.Asleep, match="default memory pool"):
        gpupool.empty(MIB)
    gpupool.wake()
    assert count_wrong(array, 3) == 0
    assert int((view != 9).sum()) == 0
    if gpupool.cublas.available:
        with gpupool.cublas.lease() as lease:
            assert int(lease) != 0
    del view


def host_bytes():
    """Return how much memory of the host this process and its children may take."""
    available = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    nbytes = int(available[1]) << 10
    # A container may have less.
    with contextlib.suppress(OSError, ValueError):
        nbytes = min(nbytes, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return nbytes


@pytest.mark.alone
def test_two_processes_take_turns_on_the_whole_device(pool):
    # Each has more than half of what is free, and what both back up has room in the host's memory.
    free = free_bytes() - 4 * GIB
    nbytes = min(free * 3 // 5, host_bytes() * 2 // 5) // MIB * MIB
    _taken = cupy.cuda.Memory(free - nbytes * 5 // 3)
    array, part = words_in(pool, nbytes, 1), 64 * MIB // 8
    program = [sys.executable, PROGRAMS / "sleep" / "the_other_process.py", str(nbytes)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            for turn in range(1, 4):
                pool.sleep()
                other.stdin.write("work\n")
                other.stdin.flush()
                assert other.stdout.readline() == f"turn {turn}: 0 wrong words\n"
                pool.wake()
                array += 1
                assert count_wrong(array[:part], 1 + turn) == 0
                assert count_wrong(array[-part:], 1 + turn + array.size - part) == 0
            other.stdin.close()
            assert other.wait(60) == 0
        finally:
            other.kill()
    del array


def test_tensors_of_pytorch_come_back(pool):
    torch = import_or_skip("torch")
    gpupool.torch.enable()
    try:
        with gpupool.use_mem_pool(pool):
            tensor = torch.arange(8 * MIB, device="cuda", dtype=torch.int64)
        torch.cuda.synchronize()
        pool.sleep()
        with gpupool.use_mem_pool(pool), pytest.raises(RuntimeError, match="is asleep and serves no request"):
            torch.empty(64 * MIB, device="cuda")
        pool.wake()
        assert bool((tensor == torch.arange(8 * MIB, device="cuda", dtype=torch.int64)).all())
        del tensor
        gc.collect()
    finally:
        gpupool.torch.disable()
