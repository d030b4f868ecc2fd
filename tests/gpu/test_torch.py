"""PyTorch on gpupool's memory by pools, beside its own; test_torch_full.py has gpupool as its allocator."""

import ctypes
import gc
import threading

import gpupool
import pytest
from gpu_helpers import cupy, import_or_skip, in_threads, pool_or_skip, run_program, stream_of

MIB = 1 << 20


@pytest.fixture
def torch():
    """Return PyTorch with its context made, or skip."""
    torch = import_or_skip("torch")
    try:
        gpupool.torch.mem_pool()
    except gpupool.LibraryNotFound as error:
        pytest.skip(str(error))
    torch.empty(1, device="cuda")
    yield torch
    gpupool.torch.disable()
    gc.collect()
    torch.cuda.synchronize()
    gpupool.torch.empty_cache()


def filled(torch, value, count=MIB):
    return torch.full((count,), value, dtype=torch.int32, device="cuda")


def all_are(tensor, value):
    return bool((tensor == value).all())


def is_in(pool, address):
    """Return whether an address is in a segment of a pool of gpupool's."""
    segments = [(segment["address"], segment["total_size"]) for segment in pool.snapshot()]
    return any(start <= address < start + size for start, size in segments)


def test_a_pool_of_pytorchs_takes_its_memory_from_ours(torch):
    pool = gpupool.MemPool()
    made = gpupool.torch.mem_pool(pool)
    before = torch.cuda.memory_allocated()
    with torch.cuda.use_mem_pool(made):
        tensors = [filled(torch, value) for value in range(32)]
    outside = filled(torch, 99)
    assert 32 * 4 * MIB <= pool.stats().live_bytes < 64 * 4 * MIB
    assert torch.cuda.memory_allocated() >= before + 33 * 4 * MIB, "PyTorch no longer counts"
    assert all(all_are(tensor, value) for value, tensor in enumerate(tensors))
    assert made.snapshot(), "PyTorch no longer tells its segments"
    del tensors, made
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert pool.stats().live_bytes == 0
    assert all_are(outside, 99)


def test_a_pool_of_pytorchs_takes_its_memory_by_functions_in_c(torch):
    made = torch.cuda.MemPool(torch._C._cuda_customAllocator(gpupool.c_api.malloc, gpupool.c_api.free))
    before = gpupool.memory_stats(0).live_bytes
    with torch.cuda.use_mem_pool(made):
        tensors = [filled(torch, value) for value in range(32)]
    assert gpupool.memory_stats(0).live_bytes >= before + 32 * 4 * MIB
    assert all(all_are(tensor, value) for value, tensor in enumerate(tensors))
    del tensors, made
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    gpupool.empty_cache()
    assert gpupool.memory_stats(0).live_bytes == before


def test_an_allocator_of_pytorchs_supplies_our_pool(torch):
    driver, live = ctypes.CDLL("libcuda.so.1"), {}

    def malloc(size, device, stream):
        address = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        live[address.value] = size
        return address.value

    def free(address, size, device, stream):
        assert live.pop(address) == size
        driver.cuMemFree_v2(ctypes.c_uint64(address))

    pointer, size, device = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
    functions = (
        ctypes.CFUNCTYPE(pointer, size, device, pointer)(malloc),
        ctypes.CFUNCTYPE(None, pointer, size, device, pointer)(free),
    )
    addresses = [ctypes.cast(function, pointer).value for function in functions]
    pool = gpupool.MemPool(torch._C._cuda_customAllocator(*addresses))
    with pool:
        buffer = gpupool.empty(4 * MIB, torch.cuda.current_stream())
    assert buffer.ptr in live
    assert all_are(torch.from_dlpack(buffer).view(torch.int32).fill_(7), 7)
    torch.cuda.synchronize()
    del buffer, pool
    gc.collect()
    gpupool.empty_cache()
    assert live == {}


def test_a_block_for_all_threads_has_the_memory_of_backward_passes(torch):
    pool = gpupool.MemPool()
    weight = torch.ones(MIB, device="cuda", requires_grad=True)
    loss = (weight * 2).sum()
    with gpupool.torch.using(pool, all_threads=True):
        loss.backward()
    assert is_in(pool, weight.grad.data_ptr())
    assert all_are(weight.grad, 2)


def test_a_pool_at_its_limit_is_pytorchs_error(torch):
    pool = gpupool.MemPool(limit=100 * MIB)
    made = gpupool.torch.mem_pool(pool)
    with torch.cuda.use_mem_pool(made):
        kept = filled(torch, 5)
        for _ in range(3):
            with pytest.raises(torch.cuda.OutOfMemoryError, match="Tried to allocate"):
                torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
        again = filled(torch, 6)
    assert all_are(kept, 5)
    assert all_are(again, 6)
    assert pool.stats().reserved_bytes <= 100 * MIB
    # Outside there is more.
    assert torch.empty(200 * MIB, dtype=torch.uint8, device="cuda").numel() == 200 * MIB


@pytest.mark.parametrize("threads", [1, 16])
def test_threads_compute_in_one_pool(torch, threads):
    pool = gpupool.MemPool()

    def work(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for step in range(20):
                with gpupool.torch.using(pool):
                    tensor = filled(torch, number + step, 1000 * (number + step + 1))
                    other = tensor * 2 + 1
                assert all_are(other, 2 * (number + step) + 1)
        return True

    outside = filled(torch, 7)
    assert all(in_threads(threads, work))
    assert pool.stats().live_bytes > 0
    assert all_are(outside, 7)
    torch.cuda.synchronize()
    gpupool.torch.empty_cache()
    assert pool.stats().live_bytes == 0


def test_threads_that_start_in_a_block_are_not_in_it(torch):
    pool = gpupool.MemPool()
    made = []
    with gpupool.torch.using(pool):
        thread = threading.Thread(target=lambda: made.append(filled(torch, 1, 30 * MIB)))
        thread.start()
        thread.join()
    assert pool.stats().live_bytes == 0


def test_cupy_and_pytorch_share_a_pool(torch):
    pool = gpupool.MemPool()
    make = cupy.cuda.memory.CFunctionAllocator
    allocator = make(0, gpupool.c_api.cupy_malloc, gpupool.c_api.cupy_free, gpupool.c_api)
    with gpupool.torch.using(pool), gpupool.use_mem_pool(pool), cupy.cuda.using_allocator(allocator.malloc):
        array = cupy.arange(MIB, dtype=cupy.int32)
        tensor = torch.from_dlpack(array) * 2
        back = cupy.from_dlpack(tensor)
    assert int((back - 2 * array).sum()) == 0
    assert is_in(pool, array.data.ptr)
    assert is_in(pool, tensor.data_ptr())


def test_calls_without_a_stream_follow_pytorchs(torch):
    cublas = pool_or_skip("cublas")
    gpupool.torch.enable(allocator=False)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        buffer, handle = gpupool.empty(MIB), cublas.handle()
        assert buffer.stream == stream.cuda_stream == stream_of(cublas, handle)
    assert gpupool.empty(MIB).stream == torch.cuda.current_stream().cuda_stream
    gpupool.torch.disable()
    with torch.cuda.stream(stream):
        assert gpupool.empty(MIB).stream == 0


def test_a_graph_over_a_pool_of_ours(torch):
    pool = gpupool.MemPool()
    made = gpupool.torch.mem_pool(pool)
    source = torch.zeros(MIB, device="cuda")
    stream = torch.cuda.Stream()
    # Loads the kernels, which no capture survives.
    with torch.cuda.stream(stream):
        (source + 1).mul_(2)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=made.id, stream=stream), pool.capture(stream) as memory:
        tensor = (source + 1).mul_(2)
        buffer = gpupool.empty(4 * MIB, stream)
        view = torch.as_tensor(buffer, device="cuda").view(torch.float32)
        view.copy_(tensor)
        view.add_(1)
    addresses = tensor.data_ptr(), buffer.ptr
    assert [is_in(pool, address) for address in addresses] == [True, True]
    for value in range(20):
        source.fill_(value)
        graph.replay()
        # Others use memory meanwhile, also of this pool, and are given none of the graph's.
        with gpupool.use_mem_pool(pool):
            others = [gpupool.empty(4 * MIB) for _ in range(8)]
        for other in others:
            torch.as_tensor(other, device="cuda").fill_(255)
        assert not {other.ptr for other in others} & set(addresses)
        assert bool((tensor == 2 * (value + 1)).all())
        assert bool((view == 2 * (value + 1) + 1).all())
    del tensor, view, buffer, other, others
    gc.collect()
    torch.cuda.synchronize()
    held = pool.stats().reserved_bytes
    torch.cuda.empty_cache()
    pool.trim()
    graph.replay()
    torch.cuda.synchronize()
    assert held >= pool.stats().reserved_bytes >= 8 * MIB
    memory.reset()
    del graph, made
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    pool.trim()
    torch.cuda.synchronize()
    pool.trim()
    assert (pool.stats().live_bytes, pool.stats().reserved_bytes, pool.use_count()) == (0, 0, 1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "steps",
    [
        "torch-gpupool-whole",
        "gpupool-torch-whole",
        "cupy-whole",
        "whole-thread",
        "torch-gpupool-pool",
        "gpupool-torch-pool",
        "pool-thread",
    ],
)
@pytest.mark.usefixtures("torch")
def test_exits_cleanly_with_live_tensors(steps):
    run_program("ends/with_frameworks.py", *steps.split("-"))
