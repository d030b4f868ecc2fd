"""Memory that processes share on a GPU: the words, the order, a process that is killed, another GPU."""

import gc
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import gpupool
import pytest
from gpu_helpers import PROGRAMS, cupy, skip_without_two_gpus, wait_until
from gpupool import _native
from long_kernel import spin

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

    def attach(self, buffer, stream=None, device=-1, how="attach"):
        said = self(how, bytes(buffer.share(stream)).hex(), device)
        assert said == f"{buffer.nbytes} bytes", said

    def leave(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def kill(self):
        self.process.kill()
        assert self.process.wait(60) == -signal.SIGKILL


@pytest.fixture
def processes():
    """Return what starts other processes, and see that nothing of them is left."""
    started = []

    def start():
        started.append(OtherProcess())
        return started[-1]

    yield start
    for other in started:
        other.process.stdin.close()
        other.process.wait(60)
        other.process.stdout.close()
    wait_until(lambda: shared() == [], "nothing is shared")
    gc.collect()
    gpupool.empty_cache()


@pytest.fixture
def other(processes):
    """Return another process."""
    return processes()


@pytest.fixture
def two_gpus():
    """Skip without a second GPU that reaches the first."""
    skip_without_two_gpus()


@pytest.fixture(autouse=True)
def shareable():
    """Skip where memory cannot be shared."""
    if not _native.device_info(0)["is_shareable"]:
        pytest.skip("memory of this device cannot be shared")


def shared():
    return [each.nbytes for device in gpupool.memory_summary().devices for each in device.shared]


def words(nbytes, first):
    """Return a buffer and its array of the numbers from ``first`` on."""
    buffer = gpupool.empty(nbytes)
    array = cupy.asarray(buffer).view(cupy.uint64)
    array[...] = cupy.arange(first, first + array.size, dtype=cupy.uint64)
    return buffer, array


def count_wrong(array, first):
    return int(cupy.count_nonzero(array != cupy.arange(first, first + array.size, dtype=cupy.uint64)))


def test_what_was_submitted_before_is_waited_for_on_the_gpu(other):
    stream = cupy.cuda.Stream(non_blocking=True)
    buffer, array = words(64 * MIB, 0)
    cupy.cuda.Device().synchronize()
    # All kernels are loaded before the one that is to run long, here and in the other process.
    spin(0)
    array += 0
    other.attach(buffer)
    assert other("count", 0) == "0 wrong words"
    assert other("free") == "freed"
    with stream:
        spin(LONG_KERNEL)
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


# How a process whose current device is GPU 1 has memory of GPU 0: as that of GPU 1, or as GPU 0's, whose peer GPU 1 is.
ACROSS = pytest.mark.parametrize("how", ["attach", "reach"])


@ACROSS
@pytest.mark.usefixtures("two_gpus")
def test_another_gpu_that_can_reach_the_memory(other, how):
    assert other("use", 1) == "device 1"
    for number, nbytes in enumerate(SIZES):
        first = number << 40
        buffer, array = words(nbytes, first)
        cupy.cuda.Device().synchronize()
        other.attach(buffer, device=1, how=how)
        assert other("count", first) == "0 wrong words"
        assert other("add") == "added"
        assert count_wrong(array, first + 1) == 0
        array += 1
        cupy.cuda.Device().synchronize()
        assert other("count", first + 2) == "0 wrong words"
        # It tells right from wrong.
        assert other("count", first + 3) == f"{nbytes // 8} wrong words"
        assert other("free") == "freed"
        del array
        buffer.free()
    wait_until(lambda: other("left") == "0 and 0 bytes", "it has let go of all")


@ACROSS
@pytest.mark.usefixtures("two_gpus")
def test_a_process_killed_at_work_on_another_gpu_has_let_go(other, how):
    other("use", 1)
    live = gpupool.memory_stats(0).live_bytes
    buffer, array = words(64 * MIB, 0)
    cupy.cuda.Device().synchronize()
    other.attach(buffer, device=1, how=how)
    assert other("count", 0) == "0 wrong words"
    assert other("add-behind", LONG_KERNEL) == "submitted"
    other.kill()
    wait_until(lambda: shared() == [], "the killed process has let go")
    # Its kernel may have come to the addition, or not. What is written now stays.
    array[...] = cupy.arange(5, 5 + array.size, dtype=cupy.uint64)
    assert count_wrong(array, 5) == 0
    del array
    buffer.free()
    assert gpupool.memory_stats(0).live_bytes == live
    # It is used again at once, and nothing of the other's work is in it.
    again, array = words(64 * MIB, 9)
    assert count_wrong(array, 9) == 0
    del array
    again.free()


def free_bytes():
    """Return what the driver says is free of each of the first two GPUs."""
    free = []
    for device in (0, 1):
        with cupy.cuda.Device(device):
            free.append(cupy.cuda.runtime.memGetInfo()[0])
    return free


# Twenty-four processes begin and end.
@pytest.mark.timeout(400)
@pytest.mark.alone
@pytest.mark.usefixtures("two_gpus")
def test_memory_across_gpus_comes_back_whoever_dies_first(processes):
    free_bytes()  # Which makes this process's contexts.
    before = free_bytes()
    for first in range(3):
        for how in ("attach", "reach"):
            for dies in ("owner", "user"):
                owner, user = processes(), processes()
                owner("use", 0)
                user("use", 1)
                assert user(how, owner("share", 300 * MIB, first), 1) == f"{300 * MIB} bytes"
                assert user("count", first) == "0 wrong words"
                assert user("add-behind", LONG_KERNEL // 10) == "submitted"
                if dies == "owner":
                    owner.kill()
                    assert user("count", first + 1) == "0 wrong words"
                    user.leave()
                else:
                    user.kill()
                    owner.leave()
    enough = [free - 8 * MIB for free in before]
    wait_until(lambda: all(now >= then for now, then in zip(free_bytes(), enough, strict=True)), "all memory is back")


def live_and_die(seed, gpus):
    """Share blocks of all sizes with a process until it ends or is killed, and check every word. Return the blocks.

    The blocks are of a GPU of the first so many, and so is the device that the process works on.
    """
    chance, other = random.Random(seed), OtherProcess()
    turns, end = chance.randrange(3, 9), chance.choice(["leaves", "is killed", "is killed at work"])
    here, there = chance.randrange(gpus), chance.randrange(gpus)
    with cupy.cuda.Device(here), cupy.cuda.Stream(non_blocking=True) as stream:
        assert other("use", there) == f"device {there}"

        def attached():
            first, nbytes = chance.randrange(1 << 40), 8 * int(2 ** chance.uniform(0, 25))
            buffer = gpupool.empty(nbytes, stream)
            array = cupy.asarray(buffer).view(cupy.uint64)
            array[...] = cupy.arange(first, first + array.size, dtype=cupy.uint64)
            how = chance.choice(["attach", "reach"]) if here != there else "attach"
            other.attach(buffer, stream, there, how)
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
@pytest.mark.parametrize("gpus", [1, 2])
def test_processes_come_go_and_die_while_every_word_is_checked(gpus):
    if gpus == 2:
        skip_without_two_gpus()
    with ThreadPoolExecutor(4) as executor:
        blocks = sum(executor.map(live_and_die, range(LIVES), [gpus] * LIVES))
    wait_until(lambda: shared() == [], "nothing is shared")
    gc.collect()
    gpupool.empty_cache()
    print(f"soak: {LIVES} processes on {gpus} GPUs took up {blocks} blocks, every word right")
