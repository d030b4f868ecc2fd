"""A new stream that gets the address of a destroyed one gets none of the memory that the destroyed one's work uses."""

import gpupool
import numpy as np
import pytest
from gpu_helpers import cupy

SPIN = """
extern "C" __global__ void spin(long long cycles) {
  const long long end = clock64() + cycles;
  while (clock64() < end) {}
}
"""
# So often a stream is destroyed, until one of so many new ones has its address.
TRIES, STREAMS = 32, 8


def array_of(buffer):
    """The buffer's bytes as an array."""
    memory = cupy.cuda.UnownedMemory(buffer.ptr, buffer.nbytes, buffer)
    return cupy.ndarray(buffer.nbytes, dtype=np.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))


def replaced(flags, work):
    """A stream at the address of one that was destroyed while it did this work."""
    create = cupy.cuda.runtime.streamCreateWithFlags
    for _ in range(TRIES):
        address = create(flags)
        with cupy.cuda.ExternalStream(address) as former:
            work(former)
        cupy.cuda.runtime.streamDestroy(address)
        if address in [create(flags) for _ in range(STREAMS)]:
            return cupy.cuda.ExternalStream(address)
    pytest.skip("no new stream has the address of a destroyed one")


@pytest.mark.parametrize("flags", [0, 1], ids=["blocking", "non_blocking"])
@pytest.mark.parametrize("nbytes", [512, 8 << 20])
def test_work_of_a_destroyed_stream_keeps_its_memory(flags, nbytes):
    spin = cupy.RawKernel(SPIN, "spin")

    def keep_busy(stream, cycles):
        buffer = gpupool.empty(nbytes, stream)
        spin((1,), (1,), (np.int64(cycles),))
        array_of(buffer).fill(1)

    # What is compiled is compiled before.
    with cupy.cuda.Stream() as first:
        keep_busy(first, 1)
    new = replaced(flags, lambda former: keep_busy(former, 200_000_000))
    again = gpupool.empty(nbytes, new)
    with new:
        array = array_of(again)
        array.fill(2)
    cupy.cuda.Device().synchronize()
    assert bool((array == 2).all())
