"""The simulation of PyTorch's allocator, beside that allocator: after each request both have reserved the same.

Arguments as in `torch_calls`. Memory runs out again and again, so that both give back what is free. PyTorch's
expandable segments cannot be tried, for they ask the driver for more than its double has.
"""

import os
import random

os.environ["FAKE_MEMORY_MIB"] = "512"

from gpupool._traces import pytorch as _pytorch
from torch_calls import MIB, NATIVE, VERSION, Allocator, Failed, main

STEPS = 3000


class Both:
    """PyTorch's allocator and the simulation, which are asked for the same."""

    def __init__(self):
        self.native = Allocator(NATIVE)
        self.simulated = _pytorch._Allocator(False, int(os.environ["FAKE_MEMORY_MIB"]) * MIB)
        # Of each block the address and the simulation's.
        self.live = []

    def take(self, nbytes, stream):
        address = self.address(nbytes, stream)
        if address is not None and VERSION == (2, 11):
            # Of free blocks of one size that of the oldest segment is taken, as in the simulation, where new segments
            # have higher addresses. PyTorch 2.11 takes the one with the lowest address, wherever segments are.
            self.simulated._next = self.native.base_allocation(address)["base"]
        try:
            block = self.simulated.allocate(nbytes, stream, 0)
        except _pytorch._OutOfMemory:
            block = None
        assert (address is None) == (block is None), (address, block, nbytes)
        if address is not None:
            self.live.append((address, block))
        return address is not None

    def address(self, nbytes, stream):
        """Return where PyTorch has the block; None where it is out of memory."""
        try:
            return self.native.raw_alloc_with_stream(nbytes, stream)
        except Failed as error:
            if error.kind != "OutOfMemoryError":
                raise
            return None

    def give(self, number):
        address, block = self.live.pop(number)
        self.native.raw_delete(address)
        self.simulated.free(block)

    def reserved(self):
        stats = self.native.device_stats(0)
        native = stats["reserved_bytes"]["all"]["current"], stats["num_alloc_retries"]
        return native, (self.simulated.reserved, self.simulated.retries)


def check_what_is_reserved(_ours):
    both, chosen = Both(), random.Random(11)
    failed = 0
    for step in range(STEPS):
        if both.live and chosen.random() < 0.48:
            both.give(chosen.randrange(len(both.live)))
        elif not both.take(int(2 ** chosen.uniform(5, 26)), chosen.randrange(3)):
            failed += 1
            both.give(0)
        native, simulated = both.reserved()
        assert native == simulated, f"after step {step} of {STEPS}: PyTorch {native}, simulated {simulated}"
    retries = both.reserved()[0][1]
    assert 10 < failed < retries, (failed, retries)


if __name__ == "__main__":
    main(globals(), install=lambda: None)
