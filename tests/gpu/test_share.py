"""Memory that processes share on a GPU: the words, the order, a process that is killed, another GPU."""

import gc
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import gpupool
import pytest
from gpu_helpers import PROGRAMS, cupy, wait_until
from gpupool import _native

pytestmark = pytest.mark.device_memory(gib=4)

MIB = 1 << 20
SIZES = [8, 4096, 3 * MIB, 300 * MIB]
# A second, more or less.
LONG_KERNEL = 1_500_000_000
# How many processes come and go in the soak, four at a time; for a long one set it to hundreds.
LIVES = int(os.environ.get("GPUPOOL_SOAK_PROCESSES", "12"))


class OtherProcess:
    """A process that does one order after the other."""

    def __init__(self):
        program = [sys.executable, PROGRAMS / "share" / "the_other_process.py"]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, *order):
        self.process.stdin.write(" ".join(map(str, order)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def attach(self, buffer, stream=None, device=-1):
        said = self("attach", bytes(buffer.share(stream)).hex(), device)
        assert said == f"{buffer.nbytes} bytes", said


@pytest.fixture
def other():
    """Return another process, and see that nothing of it is left."""
    other = OtherProcess()
    yield other
    other.process.stdin.close()
    other.process.wait(60)
    other.process.stdout.close()
    wait_until(lambda: shared() == [], "nothing is shared")
    gc.collect()
    gpupool.empty_cache()


@pytest.fixture(autouse=True)
def shareable():
    """Skip where memory cannot be shared."""
    if not _native.device_info(0)["is_shareable"]:
        pytest.skip("memory of this device cannot be shared")


def shared():
    (device,) = gpupool.memory_summary(0).devices
    return [each.nbytes for each in device.shared]


def words(nbytes, first):
    """Return a buffer and its array of the numbers from ``first`` on."""
    buffer = gpupool.empty(nbytes)
    array = cupy.asarray(buffer).view(cupy.uint64)
    array[...] = cupy.arange(first, first + array.size, dtype=cupy.uint64)
    return buffer, array


def count_wrong(array, first):
    return int(cupy.count_nonzero(array != cupy.arange(first, first + array.size, dtype=cupy.uint64)))


def in_pieces(nbytes):
    """Have so much memory free in extents of 2 MiB, of which the next large block consists."""
    small = [gpupool.empty(2 * MIB) for _ in range(nbytes // (2 * MIB))]
    for buffer in small:
        buffer.free()


@pytest.mark.thorough
def test_words_are_right_both_ways(other):
    in_pieces(128 * MIB)
    for number, nbytes in enumerate([*SIZES, 128 * MIB]):
        first = number << 40
        buffer, array = words(nbytes, first)
        other.attach(buffer)
        assert other("count", first) == "0 wrong words"
        assert other("add") == "added"
        assert count_wrong(array, first + 1) == 0
        array += 1
        cupy.cuda.Device().synchronize()
        assert other("count", first + 2) == "0 wrong words"
        assert other("free") == "freed"
        del array
        buffer.free()


def test_what_was_submitted_before_is_waited_for_on_the_gpu(other):
    stream = cupy.cuda.Stream(non_blocking=True)
    buffer, array = words(64 * MIB, 0)
    cupy.cuda.Device().synchronize()
    spin = cupy.RawKernel(
        'extern "C" __global__ void spin(long long n) { long long s = clock64(); while (clock64() - s < n); }', "spin"
    )
    # All kernels are loaded before the one that is to run long, here and in the other process.
    spin((1,), (1,), (0,))
    array += 0
    other.attach(buffer)
    assert other("count", 0) == "0 wrong words"
    assert other("free") == "freed"
    with stream:
        spin((1,), (1,), (LONG_KERNEL,))
        array += 7
    other.attach(buffer, stream)
    # The other process has attached it, and the kernel runs.
    assert not stream.done
    assert other("count", 7) == "0 wrong words"
    assert stream.done
    assert other("free") == "freed"


def test_memory_is_used_again_after_the_others_work(other):
    buffer, _ = words(64 * MIB, 0)
    cupy.cuda.Device().synchronize()
    other.attach(buffer)
    assert other("add-behind", LONG_KERNEL) == "submitted"
    assert other("free") == "freed"
    address = buffer.ptr
    buffer.free()
    gpupool.empty(64 * MIB).free()
    assert shared() == [64 * MIB], "the kernel of the other process was over too early"
    wait_until(lambda: shared() == [], "the other process has let go")
    buffers = []
    wait_until(
        lambda: buffers.append(gpupool.empty(64 * MIB)) or buffers[-1].ptr == address, "the memory is used again"
    )


def test_a_killed_process_has_let_go(other):
    buffer, _ = words(64 * MIB, 0)
    other.attach(buffer)
    assert other("add-behind", LONG_KERNEL) == "submitted"
    buffer.free()
    other.process.kill()
    wait_until(lambda: shared() == [], "the killed process has let go")


def test_memory_stays_after_its_owner():
    code = (
        "import gpupool, sys; b = gpupool.empty(64 << 20); b.fill(7); gpupool.synchronize();"
        "print(bytes(b.share()).hex(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        token = bytes.fromhex(owner.stdout.readline())
        buffer = gpupool.attach(token)
        owner.kill()
        owner.wait(60)
    assert set(bytes(buffer)) == {7}
    buffer.fill(8)
    assert set(bytes(buffer)) == {8}
    with pytest.raises(gpupool.Unavailable, match="has ended"):
        gpupool.attach(token)
    buffer.free()
    wait_until(lambda: gpupool.memory_stats().attached_bytes == 0, "it is let go")


def test_another_gpu_that_can_reach_the_memory(other):
    if gpupool.device_count() < 2 or not cupy.cuda.runtime.deviceCanAccessPeer(1, 0):
        pytest.skip("needs two GPUs that reach each other")
    buffer, array = words(64 * MIB, 0)
    cupy.cuda.Device().synchronize()
    other.attach(buffer, device=1)
    assert other("count", 0) == "0 wrong words"
    assert other("add") == "added"
    assert count_wrong(array, 1) == 0
    assert other("free") == "freed"


def live_and_die(seed):
    """Share blocks of all sizes with a process until it ends or is killed, and check every word. Return the blocks."""
    chance, other = random.Random(seed), OtherProcess()
    turns, end = chance.randrange(3, 9), chance.choice(["leaves", "is killed", "is killed at work"])
    with cupy.cuda.Stream(non_blocking=True) as stream:

        def attached():
            first, nbytes = chance.randrange(1 << 40), 8 * int(2 ** chance.uniform(0, 25))
            buffer = gpupool.empty(nbytes, stream)
            array = cupy.asarray(buffer).view(cupy.uint64)
            array[...] = cupy.arange(first, first + array.size, dtype=cupy.uint64)
            other.attach(buffer, stream)
            assert other("count", first) == "0 wrong words", f"seed {seed}: what was shared"
            return buffer, array, first

        for _ in range(turns):
            buffer, array, first = attached()
            if chance.random() < 0.5:
                assert other("add") == "added"
                assert count_wrong(array, first + 1) == 0, f"seed {seed}: what came back"
            else:
                # Its kernel runs still while both sides free the block.
                assert other("add-behind", chance.randrange(LONG_KERNEL // 10)) == "submitted"
            assert other("free") == "freed"
            del array
            buffer.free()
        buffer, array, first = attached()
        if end == "is killed at work":
            assert other("add-behind", LONG_KERNEL) == "submitted"
        other.process.stdin.close()
        if end != "leaves":
            other.process.kill()
        assert other.process.wait(60) == (0 if end == "leaves" else -9), f"seed {seed}: it {end}"
        other.process.stdout.close()
        if end != "is killed at work":
            assert count_wrong(array, first) == 0, f"seed {seed}: it {end}"
        del array
        buffer.free()
    return turns + 1


@pytest.mark.thorough
@pytest.mark.device_memory(gib=10)
def test_processes_come_go_and_die_while_every_word_is_checked():
    with ThreadPoolExecutor(4) as executor:
        blocks = sum(executor.map(live_and_die, range(LIVES)))
    wait_until(lambda: shared() == [], "nothing is shared")
    gc.collect()
    gpupool.empty_cache()
    print(f"soak: {LIVES} processes took up {blocks} blocks, every word right")
