"""Processes that have memory, ask for some and give some are killed at random moments: nothing of them is left.

No number, no wait and no memory.
"""

import os
import random

import gpupool
from neighbour_work import others, request
from other_process import MIB, OtherProcess
from waiting import wait_until

DEVICE = 64 * MIB


def live(kept: dict, seed: int) -> None:
    """Have memory and ask for more, as long as there is somebody to end it."""
    parent = os.getppid()
    chance = random.Random(seed)
    kept["offered"] = gpupool.MemPool(sleeps_for_others=True, wakes_on_use=True)
    while os.getppid() == parent:
        held = []
        try:
            held.append(kept["offered"].empty(chance.randrange(1, 12 * MIB)))
            held += [gpupool.empty(2 * MIB) for _ in range(chance.randrange(12))]
            with gpupool.claim(chance.randrange(1, 8 * MIB)):
                held.append(gpupool.empty(chance.randrange(1, 30 * MIB)))
        except gpupool.OutOfMemory:
            pass


def killed_at_any_moment(kills: str) -> None:
    rounds = int(kills)
    chance = random.Random(5)
    waiting = [OtherProcess(), OtherProcess()]
    for seed in range(rounds):
        other = waiting.pop(0)
        other.begin(live, seed)
        if seed + 2 < rounds:
            waiting.append(OtherProcess())
        wait_until(lambda: any(each.reserved_bytes > 0 for each in others()), "the other process has memory")
        for _ in range(chance.randrange(12)):
            request(chance.randrange(1, 60 * MIB))
        other.kill()
        # Nothing is left of it: no number, no wait, no memory.
        assert others() == []
        # This process may be giving some for its last question.
        wait_until(lambda: gpupool.available_memory() == DEVICE, "all of the device is available")
        assert request(DEVICE)
        gpupool.empty_cache()
    for other in waiting:
        other.leave()
