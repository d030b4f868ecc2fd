"""gpupool as PyTorch's allocator of the whole process: training, streams, threads, settings."""

import gc
import importlib
import os
import sys
import threading

import gpupool
from enabled import MIB, SLEEP_CYCLES, all_are, filled, torch, totals
from errors import assert_says, raised


def train(steps):
    """Return the losses of a small model's training."""
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


def trains_a_model():
    losses = train(50)
    assert losses[-1] < losses[0] / 2, f"nothing was learnt: {losses}"
    assert totals().allocations > 500, f"PyTorch allocates elsewhere: {totals()}"
    gc.collect()
    # PyTorch keeps cuBLAS's workspaces, of the threads of backward passes too.
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert totals().live_bytes <= 4 * MIB, f"memory is left: {totals()}"


def keeps_memory_for_streams_that_were_recorded():
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
    assert int(total) == 55 * MIB, f"the side stream has read {int(total)}, not {55 * MIB}"
    del others


def says_what_memory_ran_out():
    kept = filled(3)
    for nbytes in (1 << 50, torch.cuda.mem_get_info()[1] * 2):
        error = raised(torch.cuda.OutOfMemoryError, torch.empty, nbytes, dtype=torch.uint8, device="cuda")
        assert_says(error, "CUDA out of memory. Tried to allocate", "default memory pool")
    pool = gpupool.MemPool(limit=100 * MIB)
    with gpupool.torch.using(pool):
        inside = filled(4)
        assert_says(raised(torch.OutOfMemoryError, inside.repeat, 100), "limit is 100.0 MiB")
        assert pool.stats().live_bytes >= 4 * MIB, f"the tensor is not the pool's: {pool.stats()}"
    assert all_are(kept, 3), "a tensor has other values after memory had run out"
    assert all_are(inside, 4), "a tensor has other values after its pool was full"
    torch.cuda.synchronize()


def says_so_in_a_backward_pass_too():
    class Greedy(torch.autograd.Function):
        """Wants more than there is, when it goes back."""

        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

    x = torch.ones(4, device="cuda", requires_grad=True)
    raised(torch.OutOfMemoryError, Greedy.apply(x).sum().backward)
    torch.cuda.synchronize()
    # After any exception in one of its threads PyTorch may abort as the interpreter ends, whosever the allocator is.
    os._exit(0)


def serves_many_threads():
    failures = []

    def work(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for step in range(100):
                tensor = filled(number, 1000 * (step % 7 + 1) * (number + 1))
                assert all_are(tensor * 2, 2 * number), f"a tensor of thread {number} has other values"
                assert gpupool.empty(64).stream == stream.cuda_stream, "gpupool does not follow PyTorch's stream"

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
    assert not failures, f"threads failed: {failures}"
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    assert totals().live_blocks <= 8, f"tensors of threads are alive: {totals()}"


def shares_memory_between_streams():
    """Use PyTorch's own streams, which are known to last, and external ones, which are not."""

    def work(stream):
        with torch.cuda.stream(stream):
            tensors = [filled(value, 16 * MIB) for value in range(4)]
            torch.cuda.synchronize()
            for value, tensor in enumerate(tensors):
                assert all_are(tensor, value), "a tensor has other values"

    # What is free on one of PyTorch's serves the others.
    streams = [torch.cuda.Stream() for _ in range(8)]
    for stream in streams:
        work(stream)
        torch.cuda.synchronize()
    assert totals().reserved_bytes < 2 * 4 * 64 * MIB, f"each stream took memory of its own: {totals()}"
    print("torch: streams: reserved MiB", totals().reserved_bytes >> 20, "where each uses", 4 * 64)
    torch.cuda.empty_cache()

    # External ones may be gone while memory of theirs lives.
    cupy = importlib.import_module("cupy")
    cupy.cuda.set_allocator(None)
    kept = []
    for value in range(4):
        owner = cupy.cuda.Stream(non_blocking=True)
        with torch.cuda.stream(torch.cuda.ExternalStream(owner.ptr)):
            kept.append(filled(value, 16 * MIB))
            torch.cuda.synchronize()
        del owner
        gc.collect()
    for value, tensor in enumerate(kept):
        assert all_are(tensor, value), "a tensor of a stream that is gone has other values"
    del tensor
    kept.clear()
    work(torch.cuda.Stream())
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()


def follows_pytorchs_settings():
    a = torch.empty(0, device="cuda")
    assert a.data_ptr() == 0, "an empty tensor takes memory"
    torch.cuda.set_per_process_memory_fraction(0.5)
    fraction = gpupool.get_per_process_memory_fraction(0)
    assert fraction == 0.5, f"PyTorch's fraction is {fraction} of gpupool's"
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
    pointer = torch.cuda.caching_allocator_alloc(MIB)
    live = totals().live_bytes
    torch.cuda.caching_allocator_delete(pointer)
    assert totals().live_bytes == live - MIB, "memory by its address is not gpupool's"
    if gpupool.cublas.available:
        assert gpupool.cublas.handle() != 0, "no handle of cuBLAS"
    b = torch.ones(256, 256, device="cuda")
    assert float((b @ b).sum()) == 256**3, "the product is wrong"


if __name__ == "__main__":
    globals()[sys.argv[1]]()
