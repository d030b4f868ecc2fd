"""Processes that claim, take, free and release at random: those that hold claims never hold more than the device has.

Clocks stand at random times, descriptors are few, processes are stopped and killed. The device has 64 MiB.
"""

import contextlib
import os
import random
import signal

import gpupool
from gpupool import _native
from other_process import MIB, OtherProcess, state
from sandbox import descriptors_left, limit_descriptors
from waiting import wait_until

DEVICE = 64 * MIB
PAGE = 2 * MIB
PROCESSES = 4


def start() -> OtherProcess:
    other = OtherProcess()
    other.call(prepare)
    return other


def prepare(kept: dict) -> None:
    limit_descriptors(64)
    gpupool.set_neighbour()
    kept["claims"], kept["buffers"] = [], []


def work(kept: dict, seed: int) -> None:
    """Do something at random. Memory is taken under claims alone."""
    chance = random.Random(seed)
    kind = chance.random()
    claims, buffers = kept["claims"], kept["buffers"]
    _native.host_set_clock(chance.choice((0, 10**18, 10**18 + 1, chance.randrange(1, 2 * 10**18))))
    if kind < 0.6:
        few = descriptors_left(chance.randrange(6)) if chance.random() < 0.2 else contextlib.nullcontext()
        with few, contextlib.suppress(gpupool.OutOfMemory, gpupool.Unavailable, gpupool.LibraryError):
            nbytes = chance.randrange(1, 24) * PAGE
            claims.append(gpupool.claim(nbytes, timeout=chance.choice((0, 0, 0.01))))
    elif kind < 0.75:
        room = min(sum(claim.left for claim in claims), 16 * PAGE) // PAGE * PAGE
        # A stopped process gives nothing back that was counted on.
        with contextlib.suppress(gpupool.OutOfMemory):
            if room:
                buffers.append(gpupool.empty(room))
    elif kind < 0.9:
        if buffers:
            buffers.pop(chance.randrange(len(buffers))).free()
        if chance.random() < 0.5:
            gpupool.empty_cache()
    elif claims:
        claims.pop(chance.randrange(len(claims))).release()


def held(kept: dict) -> int:
    """Return what a process has, or has a right to."""
    return gpupool.memory_stats().live_bytes + sum(claim.left for claim in kept["claims"])


def are_heard(processes: list[OtherProcess]) -> bool:
    pids = {each.pid for each in gpupool.neighbours()}
    return pids >= {process.process.pid for process in processes}


def hold_no_more_than_there_is(seed: str, count: str) -> None:
    chance, rounds = random.Random(int(seed)), int(count)
    gpupool.set_neighbour()
    processes = [start() for _ in range(PROCESSES)]
    granted = 0
    for turn in range(rounds):
        at_work = list(processes)
        asleep = None
        fate = chance.random()
        if fate < 0.15:
            asleep = at_work.pop(chance.randrange(PROCESSES))
            os.kill(asleep.process.pid, signal.SIGSTOP)
            wait_until(lambda pid=asleep.process.pid: state(pid) == "T", "a process is stopped")
        seeds = [chance.randrange(10**9) for _ in at_work]
        for process, each in zip(at_work, seeds, strict=True):
            process.begin(work, each)
        if fate > 0.95:
            dead = at_work.pop(chance.randrange(PROCESSES))
            processes.remove(dead)
            dead.kill()
        for process in at_work:
            process.end()
        if asleep:
            os.kill(asleep.process.pid, signal.SIGCONT)
            # What they were told before they answer again, they know.
            wait_until(lambda: are_heard(processes), "all processes answer")
        all_held = [process.call(held) for process in processes]
        granted += any(all_held)
        assert sum(all_held) <= DEVICE, f"seed {seed}, round {turn}: {[each / MIB for each in all_held]} MiB are held"
        if len(processes) < PROCESSES:
            processes.append(start())
    assert granted > rounds // 4, "hardly anything was granted"
    for process in processes:
        process.leave()
