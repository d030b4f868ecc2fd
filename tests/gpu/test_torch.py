"""PyTorch on gpupool's memory: pools of its own, graphs, and gpupool as the allocator of the whole process."""

import gc
import threading

import gpupool
import pytest
from gpu_helpers import cupy, import_or_skip, in_threads, pool_or_skip, run_python, stream_of

MIB = 1 << 20
# About 20 ms of an H200.
SLEEP_CYCLES = 40_000_000


@pytest.fixture
def torch():
    """PyTorch with its context made, or skip."""
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


def test_the_default_pool_feeds_too(torch):
    made = gpupool.torch.mem_pool()
    before = gpupool.memory_stats(0).live_bytes
    with gpupool.use_mem_pool(gpupool.MemPool()), torch.cuda.use_mem_pool(made):
        tensor = filled(torch, 3)
    assert gpupool.memory_stats(0).live_bytes >= before + 4 * MIB
    assert all_are(tensor, 3)


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
    segments = [(segment["address"], segment["total_size"]) for segment in pool.snapshot()]
    for address in (array.data.ptr, tensor.data_ptr()):
        assert any(start <= address < start + size for start, size in segments)


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


def test_it_is_too_late_for_the_allocator(torch):
    with pytest.raises(gpupool.Error, match=r"before the first tensor"):
        gpupool.torch.enable()


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
    segments = [(segment["address"], segment["total_size"]) for segment in pool.snapshot()]
    for address in (tensor.data_ptr(), buffer.ptr):
        assert any(start <= address < start + size for start, size in segments)
    addresses = tensor.data_ptr(), buffer.ptr
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


@pytest.mark.alone
def test_the_device_gets_the_memory_back(torch):
    torch.cuda.synchronize()
    gpupool.torch.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    pool = gpupool.MemPool()
    with gpupool.torch.using(pool):
        tensor = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info()[0] <= free - 500 * MIB
    del tensor
    torch.cuda.synchronize()
    gpupool.torch.empty_cache()
    torch.cuda.synchronize()
    gpupool.torch.empty_cache()
    assert torch.cuda.mem_get_info()[0] >= free - 8 * MIB


WHOLE_PROCESS = """
import gc, threading
import gpupool, gpupool.torch
gpupool.torch.enable()
import torch
gpupool.torch.enable()
MIB = 1 << 20
SLEEP_CYCLES = 40_000_000

def totals():
    return gpupool.memory_stats(0)

def filled(value, count=MIB):
    return torch.full((count,), value, dtype=torch.int32, device="cuda")
"""

TRAINING = """
def train(steps):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)).cuda()
    optimiser = torch.optim.Adam(model.parameters())
    data = torch.randn(512, 256, device="cuda")
    target = data.sum(1, keepdim=True)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad(set_to_none=True)
        loss = ((model(data) - target) ** 2).mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    return losses

losses = train(50)
assert losses[-1] < losses[0] / 2, losses
assert totals().allocations > 500, totals()
gc.collect()
# PyTorch keeps cuBLAS's workspaces, of the threads of backward passes too.
torch._C._cuda_clearCublasWorkspaces()
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert totals().live_bytes <= 4 * MIB, totals()
"""

RECORD_STREAM = """
side = torch.cuda.Stream()
total = torch.zeros((), dtype=torch.int64, device="cuda")
torch.cuda.synchronize()
for value in range(1, 11):
    tensor = filled(value)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP_CYCLES // 10)
        total += tensor.sum()
    tensor.record_stream(side)
    del tensor
    # Given out again at once, it would be overwritten before the side stream has read it.
    others = [filled(-1) for _ in range(4)]
torch.cuda.synchronize()
assert int(total) == 55 * MIB, int(total)
"""

OUT_OF_MEMORY = """
kept = filled(3)
for nbytes in (1 << 50, torch.cuda.mem_get_info()[1] * 2):
    try:
        torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        assert "CUDA out of memory. Tried to allocate" in str(error), error
        assert "default memory pool" in str(error), error
    else:
        raise AssertionError("no error")
pool = gpupool.MemPool(limit=100 * MIB)
with gpupool.torch.using(pool):
    inside = filled(4)
    try:
        inside.repeat(100)
    except torch.OutOfMemoryError as error:
        assert "limit is 100.0 MiB" in str(error), error
    else:
        raise AssertionError("no error")
    assert pool.stats().live_bytes >= 4 * MIB
assert bool((kept == 3).all()) and bool((inside == 4).all())
torch.cuda.synchronize()
"""

OUT_OF_MEMORY_IN_A_BACKWARD_PASS = """
import os
class Greedy(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()
    @staticmethod
    def backward(context, gradient):
        return torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
x = torch.ones(4, device="cuda", requires_grad=True)
try:
    Greedy.apply(x).sum().backward()
except torch.OutOfMemoryError:
    pass
else:
    raise AssertionError("no error")
torch.cuda.synchronize()
# After any exception in one of its threads PyTorch may abort as the interpreter ends, whosever the allocator is.
os._exit(0)
"""

THREADS = """
def work(number):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for step in range(100):
            tensor = filled(number, 1000 * (step % 7 + 1) * (number + 1))
            assert bool((tensor * 2 == 2 * number).all())
            assert gpupool.empty(64).stream == stream.cuda_stream

failures = []
def run(number):
    try:
        work(number)
    except BaseException as error:
        failures.append(error)

threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
torch.cuda.synchronize()
gc.collect()
torch.cuda.empty_cache()
assert totals().live_blocks <= 8, totals()
"""

STREAMS = """
def work(stream):
    with torch.cuda.stream(stream):
        tensors = [filled(value, 16 * MIB) for value in range(4)]
        torch.cuda.synchronize()
        assert all(bool((tensor == value).all()) for value, tensor in enumerate(tensors))

# PyTorch's own are known to last, so what is free on one serves the others.
streams = [torch.cuda.Stream() for _ in range(8)]
for stream in streams:
    work(stream)
    torch.cuda.synchronize()
assert totals().reserved_bytes < 2 * 4 * 64 * MIB, totals()
print("torch: streams: reserved MiB", totals().reserved_bytes >> 20, "where each uses", 4 * 64)
torch.cuda.empty_cache()

# External ones may be gone while memory of theirs lives.
import cupy
cupy.cuda.set_allocator(None)
kept = []
for value in range(4):
    owner = cupy.cuda.Stream(non_blocking=True)
    with torch.cuda.stream(torch.cuda.ExternalStream(owner.ptr)):
        kept.append(filled(value, 16 * MIB))
        torch.cuda.synchronize()
    del owner
    gc.collect()
assert all(bool((tensor == value).all()) for value, tensor in enumerate(kept))
kept.clear()
work(torch.cuda.Stream())
torch.cuda.synchronize()
torch.cuda.empty_cache()
torch.cuda.synchronize()
"""

GRAPHS = """
torch.manual_seed(1)
model = torch.nn.Linear(64, 64).cuda()
source = torch.zeros(64, 64, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        (model(source) ** 2).sum().backward()
torch.cuda.current_stream().wait_stream(side)
model.zero_grad(set_to_none=True)
pools = totals().pools
graph = torch.cuda.CUDAGraph()
# On the stream of the first passes, so that cuBLAS's workspaces, which PyTorch keeps, are there.
with torch.cuda.graph(graph, stream=side):
    answer = model(source)
    loss = (answer ** 2).sum()
    loss.backward()
assert totals().pools == pools + 1, totals()
gradients = [parameter.grad for parameter in model.parameters()]
addresses = {tensor.data_ptr() for tensor in (answer, loss, *gradients)}
for value in range(20):
    source.fill_(value)
    graph.replay()
    others = [torch.full((size,), float("nan"), device="cuda") for size in (1, 64, 4096, MIB) for _ in range(8)]
    assert not addresses & {other.data_ptr() for other in others}
    expected = torch.nn.functional.linear(source, model.weight, model.bias)
    assert torch.allclose(answer, expected, atol=1e-4), value
    assert torch.allclose(model.weight.grad, 2 * expected.T @ source, rtol=1e-3, atol=1e-1), value
    assert torch.isfinite(loss)
del answer, loss, gradients, others
model.zero_grad(set_to_none=True)
gc.collect()
torch.cuda.empty_cache()
others = [torch.full((4096,), float("nan"), device="cuda") for _ in range(100)]
assert not addresses & {other.data_ptr() for other in others}
graph.replay()
# While the last replay is at work.
del graph
gc.collect()
others += [torch.full((4096,), float("nan"), device="cuda") for _ in range(100)]
torch.cuda.synchronize()
assert all(bool(other.isnan().all()) for other in others), "the graph wrote into others' memory"
assert totals().pools == pools, totals()

# Two that share a pool, one of gpupool's beside them.
handle, own = torch.cuda.graph_pool_handle(), gpupool.MemPool()
stream = torch.cuda.Stream()
x = torch.ones(MIB, device="cuda")
# Loads the kernels, which no capture survives.
(torch.empty_like(x).copy_(x) * 2).sum()
torch.cuda.synchronize()
graphs, outputs = [], []
for factor in (2, 3):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=handle, stream=stream), own.capture(stream) as memory:
        buffer = gpupool.empty(4 * MIB)
        assert buffer.pool_id == own.id and buffer.stream == stream.cuda_stream
        view = torch.as_tensor(buffer, device="cuda").view(torch.float32)
        view.copy_(x)
        outputs.append(view * factor)
    graphs.append((graph, memory, buffer))
for graph, _, _ in graphs:
    graph.replay()
torch.cuda.synchronize()
assert [float(output.sum()) for output in outputs] == [2 * MIB, 3 * MIB]
graphs[0][0].reset()
graphs[1][0].replay()
torch.cuda.synchronize()
assert float(outputs[1].sum()) == 3 * MIB
"""

SETTINGS = """
a = torch.empty(0, device="cuda")
assert a.data_ptr() == 0
torch.cuda.set_per_process_memory_fraction(0.5)
assert gpupool.get_per_process_memory_fraction(0) == 0.5
torch.cuda.set_per_process_memory_fraction(1.0)
torch.cuda.empty_cache()
pointer = torch.cuda.caching_allocator_alloc(MIB)
live = totals().live_bytes
torch.cuda.caching_allocator_delete(pointer)
assert totals().live_bytes == live - MIB
for refused in (torch.cuda.memory_allocated, torch.cuda.memory_snapshot, torch.cuda.MemPool):
    try:
        refused()
    except RuntimeError:
        pass
    else:
        raise AssertionError(refused)
try:
    gpupool.torch.mem_pool()
except gpupool.Error as error:
    assert "no pools of its own" in str(error)
handle = gpupool.cublas.handle() if gpupool.cublas.available else 0
b = torch.ones(256, 256, device="cuda")
assert float((b @ b).sum()) == 256**3
torch.backends.cudnn.benchmark = True
try:
    torch.nn.functional.conv2d(torch.ones(4, 8, 32, 32, device="cuda"), torch.ones(8, 8, 3, 3, device="cuda"))
    print("torch: cudnn benchmark: works")
except RuntimeError as error:
    print("torch: cudnn benchmark:", str(error).splitlines()[0])
"""


@pytest.mark.parametrize(
    "code",
    [TRAINING, RECORD_STREAM, OUT_OF_MEMORY, OUT_OF_MEMORY_IN_A_BACKWARD_PASS, THREADS, STREAMS, GRAPHS, SETTINGS],
    ids=[
        "training",
        "record_stream",
        "out of memory",
        "in a backward pass",
        "threads",
        "streams",
        "graphs",
        "settings",
    ],
)
def test_the_whole_process(torch, code):
    print(run_python("-c", WHOLE_PROCESS + code))


EXITS = """
import sys, threading

def whole():
    import gpupool.torch
    gpupool.torch.enable()
    import torch
    keep.append(torch.ones(1 << 20, device="cuda"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        keep.append(keep[0].clone())
    graph.replay()
    keep.append(graph)

def pool():
    import gpupool.torch
    import torch
    own = gpupool.MemPool()
    with gpupool.torch.using(own):
        keep.append(torch.ones(1 << 20, device="cuda"))
    made = gpupool.torch.mem_pool(own)
    with torch.cuda.use_mem_pool(made):
        keep.append(torch.ones(1 << 20, device="cuda"))
    gpupool.torch.enable(allocator=False)
    keep.extend([made, own, gpupool.empty(1 << 20)])

def thread():
    import gpupool.torch, torch
    ready = threading.Event()
    def work():
        kept = torch.ones(1 << 20, device="cuda")
        ready.set()
        threading.Event().wait()
    threading.Thread(target=work, daemon=True).start()
    assert ready.wait(60)

keep = []
for step in sys.argv[1].split("-"):
    if step in ("torch", "gpupool", "cupy"):
        __import__(step)
    else:
        {"whole": whole, "pool": pool, "thread": thread}[step]()
print("end")
"""


@pytest.mark.parametrize(
    "order",
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
def test_exits_cleanly_with_live_tensors(torch, order):
    assert run_python("-c", EXITS, order).strip() == "end"
