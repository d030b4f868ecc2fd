"""Pools that sleep: what Python sees of it."""

import ctypes
import json
import re
import threading

import gpupool
import pytest
from forks import run_program
from gpupool import _native
from own_memory import MIB, allocate_in
from running import run_example

pytestmark = pytest.mark.usefixtures("nothing_left")


def fill(buffer, number):
    ctypes.memset(buffer.ptr, number, buffer.nbytes)


def is_full_of(buffer, number):
    return ctypes.string_at(buffer.ptr, buffer.nbytes) == bytes([number]) * buffer.nbytes


@pytest.mark.parametrize("backup", ["host", None])
def test_what_is_live_comes_back_with_a_backup(backup):
    pool = gpupool.MemPool()
    buffers = [allocate_in(pool, nbytes) for nbytes in (1, 70_000, 3 * MIB, 40 * MIB)]
    for number, buffer in enumerate(buffers):
        fill(buffer, number + 1)
    addresses = [buffer.ptr for buffer in buffers]
    reserved = pool.stats().reserved_bytes
    assert pool.is_asleep is False
    assert pool.sleep(backup=backup) == reserved
    assert (pool.is_asleep, pool.sleep(), pool.stats().reserved_bytes) == (True, 0, 0)
    stats = pool.stats()
    assert stats.asleep_bytes == stats.live_bytes > 43 * MIB
    assert (stats.backup_bytes >= stats.asleep_bytes) is (backup == "host")
    assert pool.wake() > 43 * MIB
    assert (pool.is_asleep, pool.wake(), pool.stats().asleep_bytes) == (False, 0, 0)
    assert [buffer.ptr for buffer in buffers] == addresses
    assert backup is None or all(is_full_of(buffer, number + 1) for number, buffer in enumerate(buffers))


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
    gpupool.simulated.lease().release()
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


@pytest.mark.parametrize(
    ("example", "arguments", "turns", "part", "result"),
    [
        ("models_in_turns", ("--mib", "8", "--turns", "4"), 3, 1 / 2, "all 4 results are the same, bit for bit"),
        # Weights and the larger of two, of three that are as large, twice as large and twice as large.
        (
            "train_and_generate",
            ("--mib", "4", "--rounds", "3"),
            3,
            3 / 5,
            "all 3 rounds, the weights and the state are the same, bit for bit",
        ),
    ],
)
def test_the_examples_need_less_memory_and_keep_every_bit(example, arguments, turns, part, result):
    *told, most, same = run_example(example, *arguments)
    assert len(told) == turns
    without, with_sleep = map(int, re.fullmatch(r"at most (\d+) MiB without sleep, (\d+) MiB with it", most).groups())
    assert with_sleep <= without * part
    assert same == result


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
