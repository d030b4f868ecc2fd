"""A process ends with RMM's buffers alive, whichever of the two packages it imported first."""

import importlib
import sys

# What lives until the interpreter lets it go.
alive = []


def main(way, *order):
    packages = {name: importlib.import_module(name) for name in order}
    rmm, gpupool = packages["rmm"], packages["gpupool"]
    if way == "callback":
        gpupool.rmm._module = False
    gpupool.rmm.enable()
    own = rmm.mr.get_per_device_resource(0)
    cycle = [rmm.DeviceBuffer(size=1000, mr=own)]
    cycle.append(cycle)
    buffer = rmm.DeviceBuffer(size=1000, mr=own)
    alive.extend([own, buffer, cycle, gpupool.MemPool(allocator=gpupool.rmm.allocator(own))])
    live = gpupool.memory_stats().live_blocks
    assert live == 2, f"{live} blocks are alive, not 2"


if __name__ == "__main__":
    main(*sys.argv[1:])
