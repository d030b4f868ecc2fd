"""cuda.core's buffers in gpupool's pinned memory."""

import sys

import gpupool
import numpy as np
from cuda.core import Buffer
from cuda_core_device import device, own, stream
from double import MIB, calls, driver, set_capture
from errors import assert_says, raised

resource = gpupool.cuda_core.PinnedMemoryResource()


def live():
    """Return the number of blocks of pinned memory that were not freed."""
    stats = gpupool.pinned_stats()
    return stats.live_blocks - stats.waiting_blocks


def are_the_hosts_and_every_device_s():
    buffer = resource.allocate(1000, stream=stream)
    for one in (buffer, resource):
        told = one.is_device_accessible, one.is_host_accessible, one.is_managed
        assert told == (True, True, False), f"{one} tells {told}"
    assert resource.device_id == -1, f"the memory is of device {resource.device_id}"
    assert repr(resource) == "gpupool.cuda_core.PinnedMemoryResource(numa=None)", f"it is shown as {resource!r}"
    requested = gpupool.pinned_stats().requested_bytes
    assert (live(), requested, gpupool.memory_stats().live_blocks) == (1, 1000, 0), "it is other memory"
    array = np.from_dlpack(buffer)
    array[:] = 7
    assert array.ctypes.data == int(buffer.handle), "the host has a copy"
    del array
    # A device whose memory resource it is allocates from it.
    device.memory_resource = resource
    other = device.allocate(MIB, stream=stream)
    assert other.is_host_accessible, "the device's memory is not pinned"
    buffer.close()
    other.close()
    buffer.close()
    assert live() == 0, "a closed buffer is alive"
    empty = resource.allocate(0, stream=stream)
    assert (int(empty.handle), empty.size, live()) == (0, 0, 0), "an empty buffer takes memory"
    empty.close()


def wait_for_the_stream_that_closes_them():
    def closed(on):
        buffer = resource.allocate(32 * MIB, stream=stream)
        address = int(buffer.handle)
        buffer.close(on)
        return address

    other = device.create_stream(gpupool.Stream())
    closed(stream)
    assert calls("cuEventRecord") == 1, "the memory waits for another stream than its own"
    closed(other)
    assert calls("cuEventRecord") == 3, "the memory does not wait for the stream that closed it"
    assert gpupool.pinned_stats().waiting_blocks > 0, "the memory waits for nothing"
    set_capture(own.ptr, 1)
    address = closed(stream)
    set_capture(own.ptr, 0)
    buffers = [resource.allocate(32 * MIB, stream=stream) for _ in range(3)]
    assert address not in [int(buffer.handle) for buffer in buffers], "a graph's memory was handed out again"
    driver.double_destroy_graph(1)
    for buffer in buffers:
        buffer.close()


def share_memory_with_gpupool_s():
    made = gpupool.empty_pinned(1000)
    buffer = gpupool.cuda_core.to_buffer(made)
    assert (int(buffer.handle), buffer.size, buffer.owner) == (made.ptr, 1000, made), "another buffer was made"
    assert gpupool.cuda_core.from_buffer(buffer) is made, "the way back leads elsewhere"
    del made
    assert live() == 1, "the memory went though a buffer has it"
    buffer.close()
    assert live() == 0, "a closed buffer keeps its memory"

    buffer = resource.allocate(1000, stream=stream)
    made = gpupool.cuda_core.from_buffer(buffer)
    assert (made.ptr, made.nbytes) == (int(buffer.handle), 1000), f"gpupool's buffer is {made}"
    buffer.close()
    assert live() == 1, "the memory went though gpupool's buffer has it"
    del made
    assert live() == 0, "gpupool's buffer keeps its memory"
    for foreign in (Buffer.from_handle(0x10000, 8), buffer):
        assert_says(raised(gpupool.InvalidValue, gpupool.cuda_core.from_buffer, foreign), "from_dlpack")


def that_are_not_to_be_had_are_refused():
    gpupool.set_pinned_limit(8 * MIB)
    assert_says(raised(gpupool.OutOfMemory, resource.allocate, 9 * MIB, stream=stream), "set_pinned_limit")
    elsewhere = gpupool.cuda_core.PinnedMemoryResource(numa=1000)
    assert_says(raised(gpupool.InvalidValue, elsewhere.allocate, 100, stream=stream), "no NUMA node 1000")
    assert live() == 0, "a refusal left memory"
    buffer = resource.allocate(1000, stream=stream)
    raised(gpupool.InvalidValue, resource.deallocate, int(buffer.handle), 1000, stream="stream")
    assert live() == 1, "a refusal freed memory"
    buffer.close()
    assert live() == 0, "a closed buffer is alive"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
