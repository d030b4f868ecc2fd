"""cuda.core's buffers in gpupool's memory: how long they live, on which streams, and whose they are."""

import sys
import threading

import gpupool
from cuda.core import PER_THREAD_DEFAULT_STREAM, Buffer, Device
from cuda_core_device import device, own, stream
from double import MIB, calls, is_capturing, live, set_capture
from errors import assert_says, raised

gpupool.cuda_core.enable()


def are_gpupools_memory_until_they_are_closed():
    first = device.allocate(1000, stream=stream)
    second = device.allocate(MIB, stream=device.default_stream)
    assert first.size == 1000, f"a buffer of 1000 bytes has {first.size}"
    assert int(first.handle) % 512 == 0, f"{int(first.handle):#x} is not aligned"
    assert live() == 2, "the buffers are not gpupool's"
    requested = gpupool.memory_stats().requested_bytes
    assert requested == 1000 + MIB, f"{requested} bytes were asked for"
    first.close()
    assert live() == 1, "a closed buffer is alive"
    first.close()
    del second
    assert live() == 0, "a buffer that is gone is alive"
    empty = device.allocate(0, stream=stream)
    assert (int(empty.handle), empty.size, live()) == (0, 0, 0), "an empty buffer takes memory"
    empty.close()


def say_that_they_are_device_memory():
    buffer = device.allocate(1000, stream=stream)
    resource = buffer.memory_resource
    assert resource is device.memory_resource, "the buffer's resource is not the device's"
    assert type(resource) is gpupool.cuda_core.MemoryResource, f"the resource is a {type(resource)}"
    for one in (buffer, resource):
        told = one.is_device_accessible, one.is_host_accessible, one.is_managed, one.device_id
        assert told == (True, False, False, 0), f"{one} tells {told}"
    # 2 is DLPack's number for CUDA.
    assert buffer.__dlpack_device__() == (2, 0), f"DLPack is told {buffer.__dlpack_device__()}"
    expected = "gpupool.cuda_core.MemoryResource(device=0, pool=None)"
    assert repr(resource) == expected, f"the resource is shown as {resource!r}"


def are_freed_in_the_order_of_the_stream_that_closes_them():
    def assert_events(expected):
        found = calls("cuEventRecord")
        assert found == expected, f"{found} events were recorded, not {expected}"

    other = device.create_stream(gpupool.Stream())
    buffer = device.allocate(4 * MIB, stream=stream)
    address = int(buffer.handle)
    buffer.close()
    assert_events(0)
    buffer = device.allocate(4 * MIB, stream=stream)
    assert int(buffer.handle) == address, "memory that was freed was not used again"
    buffer.close(other)
    assert_events(1)
    buffer = device.allocate(1000, stream=stream)
    buffer.set_deallocation_stream(other)
    del buffer
    assert_events(2)
    assert gpupool.memory_stats().waiting_blocks > 0, "memory does not wait for the stream that freed it"
    gpupool.empty_cache()
    assert live() == 0, "a buffer is alive"


def are_freed_on_a_thread_s_own_default_stream():
    buffers = [device.allocate(1000, stream=PER_THREAD_DEFAULT_STREAM)]

    def work():
        Device(0).set_current()
        buffers.pop().close(PER_THREAD_DEFAULT_STREAM)

    before = calls("cuEventRecord")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert calls("cuEventRecord") == before + 1, "two threads' default streams count as one"


def are_the_graphs_in_a_capture():
    pool = gpupool.MemPool()
    set_capture(own.ptr, 1)
    with pool.capture(stream) as memory:
        buffer = device.allocate(4 * MIB, stream=stream)
        address = int(buffer.handle)
        buffer.close()
    assert is_capturing(own.ptr), "a buffer spoilt the capture"
    set_capture(own.ptr, 0)
    with gpupool.use_mem_pool(pool):
        other = device.allocate(4 * MIB, stream=stream)
    assert int(other.handle) != address, "the graph's memory was given to another"
    memory.reset()
    other.close()
    pool.trim()
    assert pool.stats().reserved_bytes == 0, "the graph's memory is left"


def share_memory_with_gpupool_s():
    made = gpupool.empty(1000, own)
    buffer = gpupool.cuda_core.to_buffer(made)
    assert (int(buffer.handle), buffer.size, buffer.owner) == (made.ptr, 1000, made), "another buffer was made"
    assert gpupool.cuda_core.from_buffer(buffer) is made, "the way back leads elsewhere"
    told = buffer.is_device_accessible, buffer.is_host_accessible, buffer.device_id
    assert told == (True, False, 0), f"the buffer tells {told}"
    del made
    assert live() == 1, "the memory went though a buffer has it"
    buffer.close()
    assert live() == 0, "a closed buffer keeps its memory"

    buffer = device.allocate(1000, stream=stream)
    made = gpupool.cuda_core.from_buffer(buffer)
    told = made.ptr, made.nbytes, made.stream
    assert told == (int(buffer.handle), 1000, own.ptr), f"gpupool's buffer tells {told}"
    assert gpupool.cuda_core.from_buffer(buffer) is made, "it is another each time"
    buffer.close()
    assert live() == 1, "the memory went though gpupool's buffer has it"
    assert made.nbytes == 1000, "gpupool's buffer is closed with the other"
    del made
    assert live() == 0, "gpupool's buffer keeps its memory"

    for foreign in (Buffer.from_handle(0x10000, 8, owner=own), Buffer.from_handle(0x10000, 8), buffer):
        assert_says(raised(gpupool.InvalidValue, gpupool.cuda_core.from_buffer, foreign), "from_dlpack")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
