"""A deallocation by RMM never raises: RMM cannot be told."""

import sys

import gpupool
from rmm.pylibrmm.stream import Stream


def assert_live(expected, when):
    # What waits for a stream goes too.
    gpupool.empty_cache()
    live = gpupool.memory_stats().live_blocks
    assert live == expected, f"{when} {live} blocks are alive"


def main(way):
    if way == "callback":
        gpupool.rmm._module = False
    resource = gpupool.rmm.resource()
    address = resource.allocate(1000)
    # A stream of a device that cannot reach the memory.
    resource.deallocate(address, 1000, Stream(obj=gpupool.Stream(1)))
    assert_live(0, "after a deallocation on a stream of another device")
    resource.deallocate(address, 1000)
    assert_live(0, "after a second deallocation")


if __name__ == "__main__":
    main(sys.argv[1])
