"""torch.cuda.MemPool with gpupool enabled after the first tensor: it is a pool of gpupool's."""

import ctypes
import gc
import sys
import threading

import gpupool
import late
import torch
from errors import assert_says, raised
from late import MIB, all_are, filled, totals

POINTER, SIZE, DEVICE = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
# A pool and a tensor of PyTorch's own allocator.
native = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(native):
    in_native = filled(9)
late.enable()


def is_in(tensor, segments):
    places = [(segment["address"], segment["total_size"]) for segment in segments]
    return any(start <= tensor.data_ptr() < start + size for start, size in places)


def settle():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def keep_memory_apart():
    pools, pool = totals().pools, torch.cuda.MemPool()
    assert totals().pools == pools + 1, "it is no pool of gpupool's"
    assert pool.use_count() == 1, pool.use_count()
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2, pool.use_count()
        inside = filled(1)
    outside = filled(2)
    assert is_in(inside, pool.snapshot()), "the tensor is not in the pool's snapshot"
    assert not is_in(outside, pool.snapshot()), "a tensor from outside is in the pool's snapshot"
    assert all(tuple(segment["segment_pool_id"]) == tuple(pool.id) for segment in pool.snapshot()), pool.snapshot()
    address = inside.data_ptr()
    del inside
    others = [filled(3) for _ in range(20)]
    assert address not in {other.data_ptr() for other in others}, "the pool's memory was given to others"
    with torch.cuda.use_mem_pool(pool):
        again = filled(4)
    assert again.data_ptr() == address, "the pool does not use its memory again"
    del pool
    gc.collect()
    assert all_are(again, 4), "a tensor lost its memory with its pool"
    del again
    settle()
    assert totals().pools == pools, f"the pool is left: {totals()}"


def take_memory_from_their_allocator():
    driver, live, calls = ctypes.CDLL("libcuda.so.1"), {}, []

    def malloc(size, device, stream):
        address = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        live[address.value] = size
        calls.append((size, device))
        return address.value

    def free(address, size, device, stream):
        live.pop(address)
        driver.cuMemFree_v2(ctypes.c_uint64(address))

    functions = (
        ctypes.CFUNCTYPE(POINTER, SIZE, DEVICE, POINTER)(malloc),
        ctypes.CFUNCTYPE(None, POINTER, SIZE, DEVICE, POINTER)(free),
    )
    allocator = torch._C._cuda_customAllocator(*(ctypes.cast(function, POINTER).value for function in functions))
    pool = torch.cuda.MemPool(allocator)
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(7, 3 * MIB)
    assert any(start <= tensor.data_ptr() < start + size for start, size in live.items()), "its memory is another's"
    assert all_are(tensor, 7)
    assert {device for _, device in calls} == {0}, calls
    del tensor, pool
    settle()
    assert live == {}, f"the allocator did not get back {live}"


def nest_in_gpupools():
    ours, theirs = gpupool.MemPool(), torch.cuda.MemPool()
    with gpupool.use_mem_pool(ours):
        first = filled(1)
        with torch.cuda.use_mem_pool(theirs):
            second = filled(2)
            with gpupool.use_mem_pool(ours):
                third = filled(3)
            fourth = filled(4)
        fifth = filled(5)
    sixth = filled(6)
    places = [(is_in(each, ours.snapshot()), is_in(each, theirs.snapshot())) for each in (first, second, third)]
    assert places == [(True, False), (False, True), (True, False)], f"they are in {places}"
    places = [(is_in(each, ours.snapshot()), is_in(each, theirs.snapshot())) for each in (fourth, fifth, sixth)]
    assert places == [(False, True), (True, False), (False, False)], f"they are in {places}"


def are_gpupools():
    ours = gpupool.MemPool(limit=64 * MIB)
    pool = gpupool.torch.mem_pool(ours)
    assert isinstance(pool, torch.cuda.MemPool)
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(1)
        assert pool.use_count() == ours.use_count() == 2, (pool.use_count(), ours.use_count())
        assert_says(raised(torch.OutOfMemoryError, filled, 2, 40 * MIB), "limit is 64.0 MiB")
    live = ours.stats().live_bytes
    assert 4 * MIB <= live < 5 * MIB, f"the pool has {live} bytes live, where there is a tensor of 4 MiB"
    assert is_in(tensor, pool.snapshot()), "the tensor is not in the pool's snapshot"
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor + 1
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=pool.id, stream=stream):
        result = tensor + 1
    graph.replay()
    torch.cuda.synchronize()
    assert all_are(result, 2)
    assert is_in(result, ours.snapshot()), "the graph's memory is not the pool's"
    # The pool outlives PyTorch's name for it, and the other way round.
    del pool
    gc.collect()
    graph.replay()
    torch.cuda.synchronize()
    assert all_are(result, 2)


def help_when_memory_is_short():
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 1024 * MIB) / total)

    def take(pool):
        with torch.cuda.use_mem_pool(pool):
            torch.empty(700 * MIB, dtype=torch.uint8, device="cuda")
        return torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")

    selfish = torch.cuda.MemPool()
    raised(torch.OutOfMemoryError, take, selfish)
    del selfish
    settle()
    helpful = torch.cuda.MemPool(use_on_oom=True)
    assert take(helpful).numel() == 600 * MIB
    del helpful
    torch.cuda.set_per_process_memory_fraction(1.0)


def keep_segments_whole():
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        tensors = [filled(value, MIB // 2 + value) for value in range(4)]
    for tensor in tensors:
        (segment,) = [each for each in pool.snapshot() if is_in(tensor, [each])]
        live = [block for block in segment["blocks"] if block["state"] == "active_allocated"]
        assert len(live) == 1, f"a segment has {len(live)} blocks: {segment}"


def serve_a_thread_each():
    failures, pools = [], [torch.cuda.MemPool() for _ in range(16)]

    def work(number):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for step in range(30):
                    with torch.cuda.use_mem_pool(pools[number]):
                        tensor = filled(number + step, 1000 * (number + 1))
                    assert all_are(tensor, number + step), f"a tensor of thread {number} has other values"
                    if step == 29:
                        assert is_in(tensor, pools[number].snapshot()), "a tensor is in another pool"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def of_pytorchs_own_live_on():
    global native, in_native
    with torch.cuda.use_mem_pool(native):
        tensor = filled(8)
    assert all_are(tensor, 8)
    assert all_are(in_native, 9)
    assert native.use_count() >= 1
    del tensor
    in_native = None
    native = None
    settle()
    assert all_are(filled(1), 1)


def outlive_disable():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(1)
    gpupool.torch.disable()
    assert all_are(tensor, 1)
    assert pool.use_count() == 1
    del pool
    gc.collect()
    assert all_are(tensor, 1)
    del tensor
    settle()
    gpupool.torch.enable()
    assert all_are(filled(2), 2)


def refuse_what_is_wrong():
    raised(RuntimeError, torch._C._cuda_beginAllocateCurrentThreadToPool, 0, (0, (1 << 32) + 999999))
    raised(RuntimeError, torch._C._cuda_releasePool, 0, (0, 999999))
    raised(RuntimeError, torch.cuda.caching_allocator_delete, 0x1234)
    assert all_are(filled(1), 1)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
