"""Pools that sleep: what Python sees of it."""

import ctypes
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import gpupool
import pytest
from forks import run_program
from gpupool import _native
from own_memory import MIB, Allocator, allocate_in, capturing, leave

pytestmark = pytest.mark.usefixtures("nothing_left")


def fill(buffer, number):
    ctypes.memset(buffer.ptr, number, buffer.nbytes)


def is_full_of(buffer, number):
    return ctypes.string_at(buffer.ptr, buffer.nbytes) == bytes([number]) * buffer.nbytes


def test_what_is_live_comes_back():
    pool = gpupool.MemPool()
    buffers = [allocate_in(pool, nbytes) for nbytes in (1, 70_000, 3 * MIB, 40 * MIB)]
    for number, buffer in enumerate(buffers):
        fill(buffer, number + 1)
    addresses = [buffer.ptr for buffer in buffers]
    reserved = pool.stats().reserved_bytes
    assert pool.is_asleep is False
    assert pool.sleep() == reserved
    assert (pool.is_asleep, pool.sleep(), pool.stats().reserved_bytes) == (True, 0, 0)
    stats = pool.stats()
    assert stats.asleep_bytes == stats.live_bytes > 43 * MIB
    assert stats.backup_bytes >= stats.asleep_bytes
    assert pool.wake() > 43 * MIB
    assert (pool.is_asleep, pool.wake(), pool.stats().asleep_bytes) == (False, 0, 0)
    assert [buffer.ptr for buffer in buffers] == addresses
    assert all(is_full_of(buffer, number + 1) for number, buffer in enumerate(buffers))


@pytest.mark.parametrize("backup", ["host", None])
def test_a_backup_is_the_hosts_or_none(backup):
    pool = gpupool.MemPool()
    buffer = allocate_in(pool, 3 * MIB)
    fill(buffer, 5)
    pool.sleep(backup=backup)
    assert (pool.stats().backup_bytes > 0) is (backup == "host")
    pool.wake()
    assert is_full_of(buffer, 5) or backup is None


@pytest.mark.parametrize("backup", ["disk", "Host", 1, True, b"host"])
def test_any_other_backup_is_refused(backup):
    pool = gpupool.MemPool()
    for sleep in (pool.sleep, gpupool.sleep):
        with pytest.raises(
            gpupool.InvalidValue,
            match=re.escape(f'backup is "host" for pinned memory, or None to discard the content, not {backup!r}'),
        ):
            sleep(backup=backup)
    assert not pool.is_asleep


def test_a_request_raises_asleep_and_says_how_to_wake_the_pool():
    pool = gpupool.MemPool()
    buffer = allocate_in(pool, MIB)
    pool.sleep()
    for nbytes in (1, MIB, 100 * MIB):
        with pytest.raises(gpupool.Asleep) as caught:
            allocate_in(pool, nbytes)
        expected = (
            f"memory pool {pool.id} on device 0 is asleep and serves no request: wake it first, by the pool's wake(), "
            "or gpupool.wake(0)"
        )
        assert str(caught.value) == expected
    assert issubclass(gpupool.Asleep, gpupool.Error)
    # What is asleep can be freed, and other pools serve.
    buffer.free()
    gpupool.empty(MIB).free()


def test_all_of_a_device_sleeps_and_wakes():
    pool = gpupool.MemPool()
    buffers = [allocate_in(pool, 3 * MIB), gpupool.empty(5 * MIB)]
    for buffer in buffers:
        fill(buffer, 7)
    gpupool.simulated.handle(gpupool.Stream())
    gpupool.simulated.lease().__enter__().release()
    other = gpupool.empty(MIB, gpupool.Stream(1))
    reserved = gpupool.memory_stats().reserved_bytes
    assert gpupool.sleep(0) >= reserved
    assert pool.is_asleep
    assert gpupool.memory_stats(1).asleep_bytes == 0
    with pytest.raises(gpupool.Asleep, match=r"the default memory pool on device 0 is asleep.*by gpupool\.wake\(0\)"):
        gpupool.empty(1)
    assert gpupool.sleep() == 0
    assert gpupool.wake() >= 8 * MIB
    assert not pool.is_asleep
    assert gpupool.wake(device=0) == 0
    assert all(is_full_of(buffer, 7) for buffer in buffers)
    del other


def test_pools_whose_memory_may_be_registered_elsewhere_do_not_sleep():
    for pool in (gpupool.MemPool(no_split=True), gpupool.MemPool(segments=True), Allocator().pool()):
        with pytest.raises(gpupool.Unavailable, match="cannot sleep: its segments stay where they are"):
            pool.sleep()
        gpupool.sleep()
        assert not pool.is_asleep
        gpupool.wake()


def test_a_pool_whose_memory_serves_another_does_not_sleep_alone():
    helper = gpupool.MemPool(use_on_oom=True)
    kept = allocate_in(helper, MIB)
    leave(0)
    served = gpupool.empty(MIB // 2)
    assert served.pool_id == helper.id
    with pytest.raises(gpupool.Unavailable, match=rf"1 of its blocks, the first at {served.ptr:#x}.*Free those first"):
        helper.sleep()
    assert (helper.is_asleep, helper.stats().live_blocks) == (False, 2)
    fill(served, 7)
    gpupool.sleep()
    assert helper.is_asleep
    gpupool.wake()
    assert is_full_of(served, 7)
    del served
    assert helper.sleep() == 2 * MIB
    del kept


def test_a_capture_refuses_sleep():
    pool = gpupool.MemPool()
    stream = gpupool.Stream()
    with capturing(pool, stream):
        buffer = gpupool.empty(MIB, stream)
        with pytest.raises(gpupool.InvalidValue, match="end the capture first"):
            pool.sleep()
        with pytest.raises(gpupool.InvalidValue, match="end the capture first"):
            gpupool.sleep()
    pool.sleep()
    pool.wake()
    del buffer


def test_where_there_is_no_memory_the_pool_stays_asleep():
    pool = gpupool.MemPool()
    buffer = allocate_in(pool, 3 * MIB)
    fill(buffer, 9)
    pool.sleep()
    _native.host_inject("ExtentCreate", kind="out_of_memory", times=100)
    with pytest.raises(gpupool.OutOfMemory, match=r"stays asleep, with its backup complete.*Held by gpupool:"):
        pool.wake()
    _native.host_clear_faults()
    assert pool.is_asleep
    pool.wake()
    assert is_full_of(buffer, 9)


def test_threads_work_on_while_one_waits_for_another_that_wakes_the_pool():
    pool = gpupool.MemPool()
    buffer = allocate_in(pool, 3 * MIB)
    pool.sleep()
    is_asked, is_other_under_way, outcomes = threading.Event(), threading.Event(), []

    def free_nothing(device, nbytes):
        is_asked.set()
        assert is_other_under_way.wait(60)
        return False

    def wake():
        try:
            outcomes.append(pool.wake())
        except gpupool.OutOfMemory:
            outcomes.append("no memory")

    def wake_after_the_first():
        assert is_asked.wait(60)
        is_other_under_way.set()
        wake()

    callback = gpupool.on_oom(free_nothing)
    _native.host_inject("ExtentCreate", kind="out_of_memory", times=2)
    threads = [threading.Thread(target=target) for target in (wake, wake_after_the_first)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    callback.remove()
    assert set(outcomes) == {"no memory", 4 * MIB}
    del buffer


def test_the_summary_tells_what_sleeps():
    pool = gpupool.MemPool()
    buffer = allocate_in(pool, 3 * MIB)
    pool.sleep()
    (device,) = gpupool.memory_summary(0).devices
    (found,) = [each for each in device.pools if each.id == pool.id]
    assert (found.is_asleep, found.sleeps, found.reserved_bytes) == (True, 1, 0)
    assert found.asleep_bytes == found.live_bytes == 3 * MIB
    assert found.backup_bytes >= 3 * MIB
    assert found.sleep_seconds > 0
    assert (device.asleep_bytes, device.backup_bytes) == (found.asleep_bytes, found.backup_bytes)
    assert (
        device.reserved_bytes == device.live_bytes - device.asleep_bytes + device.cached_bytes + device.releasing_bytes
    )
    text = str(device)
    assert "of the live 3.00 MiB asleep, 3.00 MiB of pinned memory back it up" in text
    assert re.search(rf"{re.escape(str(pool.id))}, asleep in \d\.\d\d\d s ", text)
    assert json.loads(gpupool.memory_summary(0).to_json())["devices"][0]["asleep_bytes"] == 3 * MIB
    pool.wake()
    (device,) = gpupool.memory_summary(0).devices
    (found,) = [each for each in device.pools if each.id == pool.id]
    assert (found.is_asleep, found.sleeps, found.asleep_bytes, found.backup_bytes) == (False, 1, 0, 0)
    assert found.wake_seconds > 0
    assert "asleep" not in str(device)
    del buffer


def test_a_snapshot_tells_what_sleeps():
    pool = gpupool.MemPool()
    buffer = allocate_in(pool, 3 * MIB)
    assert not any("is_asleep" in segment for segment in pool.snapshot())
    pool.sleep()
    (segment,) = pool.snapshot()
    assert segment["is_asleep"] is True
    assert [block["state"] for block in segment["blocks"] if block["address"] == buffer.ptr] == ["active_allocated"]


def test_the_example_has_two_models_that_take_turns():
    example = Path(__file__).parents[2] / "examples" / "models_in_turns.py"
    command = [sys.executable, example, "--mib", "8", "--turns", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    *turns, most, same = done.stdout.splitlines()
    assert len(turns) == 3
    without, with_sleep = map(int, re.fullmatch(r"at most (\d+) MiB without sleep, (\d+) MiB with it", most).groups())
    assert with_sleep * 2 == without
    assert same == "all 4 results are the same, bit for bit"


def test_the_example_has_a_trainer_and_a_generator_that_share_weights():
    example = Path(__file__).parents[2] / "examples" / "train_and_generate.py"
    command = [sys.executable, example, "--mib", "4", "--rounds", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    *rounds, most, same = done.stdout.splitlines()
    assert len(rounds) == 3
    without, with_sleep = map(int, re.fullmatch(r"at most (\d+) MiB without sleep, (\d+) MiB with it", most).groups())
    # Weights and the larger of two, of three that are as large, twice as large and twice as large.
    assert with_sleep * 5 <= without * 3
    assert same == "all 3 rounds, the weights and the state are the same, bit for bit"


def test_falling_asleep_and_waking_are_logged():
    time = r"\d+(?:\.\d)? (?:us|ms|s)"
    lines = run_program("telling/logs.py", "sleep_and_wake", "INFO")
    expected = [
        rf"pool \(0, 1\) on device 0: asleep in {time}, 6\.0 MiB given back, 5\.0 MiB backed up",
        rf"pool \(0, 1\) on device 0: awake in {time}, 6\.0 MiB taken",
        r"pool \(0, 2\) on device 0 cannot sleep: its segments stay where they are, .*; it stays awake",
    ]
    for line in expected:
        assert re.search(rf"INFO gpupool\.memory {line}\n", lines), (line, lines)
