"""cuda.core's memory from gpupool."""

import gc
from concurrent.futures import ThreadPoolExecutor

import gpupool
import numpy as np
import pytest
from gpu_helpers import cupy, import_or_skip, pinned_blocks, run_program

pytestmark = pytest.mark.device_memory(gib=4)

MIB = 1 << 20


def live():
    gc.collect()
    return gpupool.memory_stats(0).live_blocks


def total(buffer):
    """Sum up the bytes of a buffer whose work is done."""
    return int(cupy.from_dlpack(buffer).sum(dtype=cupy.int64))


@pytest.fixture
def device():
    """Return cuda.core's device, whose memory is gpupool's for the test."""
    core = import_or_skip("cuda.core")
    device = core.Device(0)
    device.set_current()
    gpupool.cuda_core.enable()
    yield device
    gpupool.cuda_core.disable()


def test_buffers_are_filled_and_copied(device):
    before = live()
    stream = device.create_stream()
    one, other = (device.allocate(3 * MIB, stream=stream) for _ in range(2))
    one.fill(3, stream=stream)
    other.copy_from(one, stream=stream)
    copy = other.copy_to(stream=stream)
    assert type(copy.memory_resource) is gpupool.cuda_core.MemoryResource
    stream.sync()
    assert total(copy) == 9 * MIB
    assert live() == before + 3
    copy.close()
    del one, other
    assert live() == before


def test_sixteen_threads(device):
    before = live()

    def work(number):
        core = import_or_skip("cuda.core")
        mine = core.Device(0)
        mine.set_current()
        stream = mine.create_stream()
        kept = []
        for step in range(100):
            buffer = mine.allocate(1000 + 977 * step, stream=stream)
            buffer.fill(number, stream=stream)
            kept.append(buffer)
            if step % 3 == 0:
                kept.pop(0).close()
        stream.sync()
        result = all(total(buffer) == number * buffer.size for buffer in kept)
        for buffer in kept:
            buffer.close()
        return result

    with ThreadPoolExecutor(16, initializer=gpupool.cuda_core.enable) as executor:
        assert all(executor.map(work, range(64)))
    assert live() == before


def test_memory_waits_for_the_stream_that_closed_it(device):
    torch = import_or_skip("torch")
    first, second = (device.create_stream() for _ in range(2))
    on_second = torch.cuda.ExternalStream(int(second.handle))
    result = torch.empty(8 * MIB, dtype=torch.int8, device="cuda")
    buffer = device.allocate(8 * MIB, stream=first)
    buffer.fill(1, stream=first)
    # cuda.core's exports wait for nobody.
    first.sync()
    view = torch.from_dlpack(buffer)
    # Loaded before a kernel is busy, which loading may wait for.
    assert int(result.copy_(view).sum(dtype=torch.int64)) == 8 * MIB
    device.sync()
    with torch.cuda.stream(on_second):
        torch.cuda._sleep(1_000_000_000)
        result.copy_(view)
    del view
    gc.collect()
    buffer.close(second)
    others = [device.allocate(8 * MIB, stream=first) for _ in range(4)]
    for other in others:
        other.fill(2, stream=first)
    assert not on_second.query(), "the host waited for the GPU"
    device.sync()
    assert int(result.sum(dtype=torch.int64)) == 8 * MIB


@pytest.mark.parametrize("mode", ["relaxed", "thread_local", "global"])
def test_a_graph_is_captured_with_its_memory(device, mode):
    stream, pool = device.create_stream(), gpupool.MemPool()
    source, result = (device.allocate(MIB, stream=stream) for _ in range(2))
    source.fill(0, stream=stream)
    builder = stream.create_graph_builder()
    # Loads what a capture would not survive.
    result.copy_from(source, stream=stream)
    stream.sync()
    builder.begin_building(mode)
    with pool.capture(builder) as memory:
        first, second = (device.allocate(MIB, stream=builder) for _ in range(2))
        first.copy_from(source, stream=builder)
        second.copy_from(first, stream=builder)
        result.copy_from(second, stream=builder)
        addresses = {int(first.handle), int(second.handle)}
        first.close()
        second.close()
    graph = builder.end_building().complete()
    for value in range(1, 6):
        others = [device.allocate(MIB, stream=stream) for _ in range(8)]
        assert not {int(other.handle) for other in others} & addresses
        for other in others:
            other.fill(100, stream=stream)
        source.fill(value, stream=stream)
        graph.launch(stream)
        stream.sync()
        assert total(result) == value * MIB
        assert all(total(other) == 100 * MIB for other in others)
    graph.close()
    memory.reset()
    pool.trim()
    stream.sync()
    pool.trim()
    assert pool.stats().reserved_bytes == 0


def test_disabled_it_is_cuda_cores_own_again(device):
    core = import_or_skip("cuda.core")
    gpupool.cuda_core.disable()
    assert type(device.memory_resource) is core.DeviceMemoryResource
    before = live()
    buffer = device.allocate(MIB, stream=device.default_stream)
    assert live() == before
    buffer.close()
    gpupool.cuda_core.enable()
    assert type(device.memory_resource) is gpupool.cuda_core.MemoryResource


@pytest.mark.parametrize("order", ["gpupool cuda.core cupy", "cupy cuda.core gpupool", "cuda.core gpupool cupy"])
def test_exits_cleanly_with_live_buffers(order):
    import_or_skip("cuda.core")
    run_program("ends/with_frameworks.py", *order.split(), "cuda_core_buffers")


def test_every_word_of_pinned_buffers_comes_and_goes(device):
    resource, nbytes = gpupool.cuda_core.PinnedMemoryResource(), 4 * MIB
    # What another test has left goes now, not meanwhile.
    live_pinned = pinned_blocks()

    def work(number):
        core = import_or_skip("cuda.core")
        mine = core.Device(0)
        mine.set_current()
        stream = mine.create_stream()
        for turn in range(30):
            buffers = [resource.allocate(nbytes, stream=stream) for _ in range(2)]
            on_gpu = mine.allocate(nbytes, stream=stream)
            expected = np.arange(nbytes // 4, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(number * 1000 + turn)
            there, back = (np.from_dlpack(buffer).view(np.uint32) for buffer in buffers)
            there[:] = expected
            on_gpu.copy_from(buffers[0], stream=stream)
            # Used again once the copy is done.
            del there
            buffers.pop(0).close(stream)
            on_gpu.copy_to(buffers[0], stream=stream)
            stream.sync()
            assert (back == expected).all(), f"thread {number}, turn {turn}"
            del back
            buffers.pop().close(stream)
            on_gpu.close(stream)
        return True

    with ThreadPoolExecutor(16) as executor:
        futures = [executor.submit(lambda number: (gpupool.cuda_core.enable(), work(number))[1], n) for n in range(16)]
        assert all(future.result() for future in futures)
    assert pinned_blocks() == live_pinned
