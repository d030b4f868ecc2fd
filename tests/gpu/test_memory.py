"""Device memory of gpupool's in other people's hands: CuPy and PyTorch see it, order it and allocate from it."""

import gc

import gpupool
import pytest
from gpu_helpers import cupy, import_or_skip, run_prepared_program
from waiting import PATIENCE

# The whole file waits for the memory API of the module.
pytestmark = pytest.mark.skipif(not hasattr(gpupool, "empty"), reason="needs gpupool.empty")

MIB = 1 << 20
# About 20 ms of an H200, in which the host does what comes next.
SLEEP_CYCLES = int(40_000_000 * PATIENCE)


def totals():
    """Return the statistics of device 0, all pools together."""
    stats = gpupool.memory_stats(0)
    return getattr(stats, "total", stats)


@pytest.fixture
def torch():
    """Return PyTorch with its context made, or skip."""
    torch = import_or_skip("torch")
    torch.cuda.init()
    torch.empty(1, device="cuda")
    return torch


def test_cupy_sees_a_buffer():
    buffer = gpupool.empty(4096)
    interface = buffer.__cuda_array_interface__
    assert (interface["shape"], interface["data"][0]) == ((4096,), buffer.ptr)
    assert interface["version"] >= 3
    array = cupy.asarray(buffer)
    assert (array.data.ptr, array.dtype, array.shape) == (buffer.ptr, cupy.uint8, (4096,))
    array[:] = cupy.arange(4096, dtype=cupy.uint8)
    again = cupy.asarray(buffer)
    assert (again.get() == cupy.arange(4096, dtype=cupy.uint8).get()).all()


def test_torch_sees_a_buffer(torch):
    buffer = gpupool.empty(4096)
    tensor = torch.as_tensor(buffer, device="cuda")
    assert (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape)) == (buffer.ptr, torch.uint8, (4096,))
    tensor.fill_(7)
    assert (cupy.asarray(buffer).get() == 7).all()


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_dlpack_shares_a_buffer_and_keeps_it_alive(library):
    module = import_or_skip(library)
    stream = gpupool.Stream()
    buffer = gpupool.empty(3 * MIB, stream)
    # 2 is DLPack's number for CUDA.
    assert buffer.__dlpack_device__() == (2, 0)
    before = totals().live_blocks
    array = module.from_dlpack(buffer)
    address = buffer.ptr
    array[:] = 9
    del buffer
    gc.collect()
    assert totals().live_blocks == before, "the consumer's memory was freed"
    assert int(array.sum(dtype=module.int64)) == 9 * 3 * MIB
    pointer = array.data.ptr if library == "cupy" else array.data_ptr()
    assert pointer == address
    del array
    gc.collect()
    stream.synchronize()
    module.cuda.Device().synchronize() if library == "cupy" else module.cuda.synchronize()
    gpupool.empty_cache()
    assert totals().live_blocks == before - 1


def test_dlpack_consumers_wait_for_the_buffers_stream(torch):
    stream = gpupool.Stream()
    buffer = gpupool.empty(8 * MIB, stream)
    producer, consumer = torch.cuda.ExternalStream(stream.ptr), torch.cuda.Stream()
    view = torch.as_tensor(buffer, device="cuda")
    view.fill_(1)
    # Loads the kernels, which would wait for the one that sleeps.
    assert int(torch.from_dlpack(buffer).sum(dtype=torch.int64)) == 8 * MIB
    torch.cuda.synchronize()
    with torch.cuda.stream(producer):
        # Long enough for a host that is busy with other tests.
        torch.cuda._sleep(10 * SLEEP_CYCLES)
        view.fill_(2)
    with torch.cuda.stream(consumer):
        tensor = torch.from_dlpack(buffer)
        total = tensor.sum(dtype=torch.int64)
    assert not producer.query(), "the producer was waited for on the host"
    consumer.synchronize()
    assert int(total) == 2 * 8 * MIB


def test_cupy_allocates_from_gpupool():
    make = cupy.cuda.memory.CFunctionAllocator
    allocator = make(0, gpupool.c_api.cupy_malloc, gpupool.c_api.cupy_free, gpupool.c_api)
    stream = gpupool.Stream()
    before = totals().live_blocks
    with gpupool.stream(stream), cupy.cuda.ExternalStream(stream.ptr), cupy.cuda.using_allocator(allocator.malloc):
        arrays = [cupy.ones(1000 + index, dtype=cupy.int64) for index in range(100)]
        assert totals().live_blocks >= before + 100
        assert all(int(array.sum()) == 1000 + index for index, array in enumerate(arrays))
        del arrays
        gc.collect()
    cupy.cuda.Device().synchronize()
    assert totals().live_blocks == before


def test_torch_allocates_a_pool_from_gpupool():
    if not hasattr(import_or_skip("torch")._C, "_cuda_customAllocator"):
        pytest.skip("this PyTorch takes no allocator by its address")
    run_prepared_program("pytorch/pool.py")


def test_torch_graph_over_a_pool():
    import_or_skip("torch")
    run_prepared_program("pytorch/graph_over_a_pool.py")


def test_scopes_route_into_a_pool():
    pool = gpupool.MemPool(limit=64 * MIB)
    stream = gpupool.Stream()
    with gpupool.use_mem_pool(pool):
        inside = gpupool.empty(MIB, stream)
    outside = gpupool.empty(MIB, stream)
    assert (tuple(inside.pool_id), tuple(outside.pool_id)) == (tuple(pool.id), (0, 0))
    with gpupool.use_mem_pool(pool), pytest.raises(gpupool.OutOfMemory, match="limit"):
        gpupool.empty(100 * MIB, stream)


def test_out_of_memory_says_who_holds_it():
    held = gpupool.empty(64 * MIB)
    with pytest.raises(gpupool.OutOfMemory) as raised:
        gpupool.empty(1 << 40)
    assert isinstance(raised.value, MemoryError)
    text = str(raised.value)
    print(text)
    assert "default memory pool" in text
    assert held.nbytes == 64 * MIB


@pytest.mark.alone
def test_empty_cache_gives_free_memory_back():
    stream = gpupool.Stream()
    stream.synchronize()
    gpupool.empty_cache()
    before = totals().reserved_bytes
    free, _ = cupy.cuda.runtime.memGetInfo()
    buffer = gpupool.empty(256 * MIB, stream)
    assert totals().reserved_bytes >= before + 256 * MIB
    assert cupy.cuda.runtime.memGetInfo()[0] <= free - 250 * MIB
    del buffer
    # Gone at once, or as soon as the GPU is done.
    gpupool.empty_cache()
    stream.synchronize()
    gpupool.empty_cache()
    assert totals().reserved_bytes == before
    assert cupy.cuda.runtime.memGetInfo()[0] >= free - 8 * MIB
