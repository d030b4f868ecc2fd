"""Neighbours on two devices: a server on each and one across both. What lacks memory on one device gets it there alone.

It needs the devices for itself. On simulated ones, where all is a sixteenth as large, they have 256 MiB each.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import gpupool
from other_process import MIB, OtherProcess, other_process

UNIT = 4 * MIB if gpupool.runtime() == "cuda" else MIB // 4
# What is free for the driver where memory is short, what the server there has free, and the one across on each device.
ROOM, OF_A_SERVER, ACROSS = 64 * UNIT, 128 * UNIT, (96 * UNIT, 160 * UNIT)
# What the driver may need for itself meanwhile.
SLACK = 32 * UNIT


def join(kept: dict, name: str) -> None:
    """Become a neighbour by a name, and have a buffer for each device."""
    gpupool.set_neighbour(name)
    kept["buffers"] = {}


def cache(kept: dict, device: int, nbytes: int) -> None:
    """Have so much free memory of a device, in pieces of 2 MiB, and beside it a buffer of sevens."""
    stream = gpupool.Stream(device)
    buffers = [gpupool.empty(2 * MIB, stream) for _ in range(nbytes // (2 * MIB))]
    if device not in kept["buffers"]:
        kept["buffers"][device] = gpupool.empty(2 * MIB, stream)
        kept["buffers"][device].fill(7, stream)
    del buffers
    stream.synchronize()


def free_bytes(kept: dict, device: int) -> int:
    """Return what the process has free of a device, if its buffer there is right."""
    if device in kept["buffers"]:
        assert set(bytes(kept["buffers"][device])) == {7}
    stats = gpupool.memory_stats(device)
    return stats.reserved_bytes - stats.live_bytes


def given(kept: dict, device: int) -> tuple[int, int]:
    """Return how much the process has given to neighbours on a device, and how often it was asked there."""
    stats = gpupool.memory_stats(device)
    return stats.given_bytes, stats.asked_by_neighbours


@contextmanager
def servers() -> Iterator[dict[str, OtherProcess]]:
    """Have a process with free memory of each device, and one with free memory of both."""
    with ExitStack() as stack:
        found = {name: stack.enter_context(other_process()) for name in ("server 0", "server 1", "across")}
        for name, process in found.items():
            process.call(join, name)
        for device in (0, 1):
            found[f"server {device}"].call(cache, device, OF_A_SERVER)
            found["across"].call(cache, device, ACROSS[device])
        yield found


def told_by_neighbours(device: int) -> dict[str, int]:
    """Return what the others on a device have free, by their names."""
    found = gpupool.neighbours(device)
    assert {each.device for each in found} <= {device}
    return {each.name: each.free_bytes for each in found if not each.is_self and each.reserved_bytes}


def told_by_top() -> list[dict[str, int]]:
    """Return the same for each device, as the command prints it."""
    command = [sys.executable, "-m", "gpupool", "top", "--once", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    devices = json.loads(done.stdout)["devices"]
    assert [each["device"] for each in devices] == list(range(gpupool.device_count()))
    return [
        {
            each["name"]: each["free_bytes"]
            for each in device["processes"]
            if each["reserved_bytes"] and each["name"].startswith(("server", "across"))
        }
        for device in devices
    ]


def both_devices_are_told_apart() -> None:
    with servers():
        expected = [{f"server {device}": OF_A_SERVER, "across": ACROSS[device]} for device in (0, 1)]
        assert [told_by_neighbours(device) for device in (0, 1)] == expected
        assert told_by_top()[:2] == expected


def is_given_where_it_is_short(short: int) -> None:
    """Take all of a device but a little, and then more than that."""
    other, stream = 1 - short, gpupool.Stream(short)
    with servers() as processes:
        server, idle, across = (processes[name] for name in (f"server {short}", f"server {other}", "across"))
        gpupool.set_neighbour("asks")
        here = gpupool.empty(2 * MIB, gpupool.Stream(other))
        # Whatever else this takes of a device is taken by now.
        before = {process: free_bytes_of(process) for process in (server, idle, across)}
        free = gpupool.memory_summary(short).devices[0].free_bytes
        rest = gpupool.empty((free - ROOM) // (2 * MIB) * (2 * MIB), stream)
        assert gpupool.memory_stats(short).asked_neighbours == 0
        # Neither of the two that have some has enough.
        wanted = ROOM + OF_A_SERVER + ACROSS[short] - SLACK
        buffer = gpupool.empty(wanted, stream)
        buffer.fill(3, stream)
        assert bytes(buffer).count(3) == wanted
        after = {process: free_bytes_of(process) for process in (server, idle, across)}
        for process in (server, across):
            lost = before[process][short] - after[process][short]
            assert lost > 0, f"{process} has given nothing"
            assert process.call(given, short)[0] == lost
        # Nobody was even asked for what there is on the other device.
        assert [each[other] for each in after.values()] == [each[other] for each in before.values()]
        assert {process.call(given, other) for process in processes.values()} == {(0, 0)}
        assert idle.call(given, short)[0] == 0
        assert gpupool.memory_stats(other).asked_neighbours == 0 < gpupool.memory_stats(short).asked_neighbours
        assert gpupool.memory_stats(short).received_bytes > 0 == gpupool.memory_stats(other).received_bytes
        told = told_by_neighbours(short)
        assert sum(told.values()) <= 2 * SLACK, told
        assert told_by_neighbours(other) == {f"server {other}": OF_A_SERVER, "across": ACROSS[other]}
        del here, rest, buffer


def free_bytes_of(process: OtherProcess) -> list[int]:
    return [process.call(free_bytes, device) for device in (0, 1)]


def memory_is_given_on_the_first_device_alone() -> None:
    is_given_where_it_is_short(0)


def memory_is_given_on_the_second_device_alone() -> None:
    is_given_where_it_is_short(1)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
