"""Two workers on one GPU whose peaks take turns: the memory goes to the one that has its peak.

A worker's peak takes nearly all the memory that both have together, and stays its cache when the peak is over. The
workers are neighbours, by their settings: before a request fails, it asks the other worker, which gives back what it
has free, except for what it is guaranteed. All other memory of the device is held by the program that starts them, so
that without this the second worker would fail.

Run it with: python examples/two_workers.py [--mib 256] [--turns 4]

--mib is the size of each peak. It needs no framework. If devices are simulated (GPUPOOL_RUNTIME=host), the processes
have them together.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack

import gpupool
from gpupool.worker import Settings, set_up

MIB = 1 << 20
NAMES = "A", "B"
PIECES = 16


def peak(nbytes):
    """Fill so much memory, check it, and free it; return whether it was right."""
    stream = gpupool.Stream()
    pieces = [gpupool.empty(nbytes // PIECES, stream) for _ in range(PIECES)]
    for number, piece in enumerate(pieces):
        piece.fill(number, stream)
    stream.synchronize()
    return all(bytes(piece).count(number) == piece.nbytes for number, piece in enumerate(pieces))


def held():
    """Return what each worker has of the device, in MiB, by its name."""
    return {each.name: each.reserved_bytes // MIB for each in gpupool.neighbours() if each.name in NAMES}


def take_turns(executors, nbytes, turns):
    """Let the workers have their peaks, print who gave what to whom, and return whether all was right."""
    for turn in range(turns):
        name, other = NAMES[turn % 2], NAMES[1 - turn % 2]
        before = held()
        if not executors[name].submit(peak, nbytes).result():
            return False
        after = held()
        given = before[other] - after[other]
        print(
            f"turn {turn}: {other} gave {given} MiB to {name}, "
            f"which has {after[name]} MiB now; {other} keeps {after[other]} MiB"
        )
    return True


def main():
    """Start two workers, leave them little more than one peak, and let them take turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="the size of each worker's peak")
    parser.add_argument("--turns", type=int, default=4, help="how many peaks both have together")
    arguments = parser.parse_args()
    nbytes = arguments.mib * MIB
    with ExitStack() as stack:
        # Only simulated devices look there.
        os.environ["GPUPOOL_HOST_SHARED"] = stack.enter_context(tempfile.TemporaryDirectory())
        executors = {}
        for name in NAMES:
            settings = Settings(name=name, guarantee=nbytes // PIECES)
            executors[name] = stack.enter_context(
                ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=set_up, initargs=(settings,))
            )
            # What the driver takes for a process itself is taken by now.
            executors[name].submit(peak, PIECES).result()
        free = gpupool.memory_summary(0).devices[0].free_bytes
        room = nbytes + 2 * nbytes // PIECES
        if free < room:
            sys.exit(f"the device has {free // MIB} MiB free: give a --mib below {free // MIB * 8 // 9}")
        rest = gpupool.empty(free - room)
        if not take_turns(executors, nbytes, arguments.turns):
            sys.exit("a worker found other bytes than it had written")
        rest.free()
    print(f"all {arguments.turns} peaks were right, in {room // MIB} MiB for both")


if __name__ == "__main__":
    main()
