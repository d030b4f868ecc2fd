"""Failures of PyTorch's, training, streams, workers and two GPUs, with gpupool enabled after the first tensor."""

import gc
import importlib
import os
import sys

import gpupool
import late
import torch
from errors import assert_says, assert_starts, raised
from late import MIB, all_are, filled, totals

late.enable()


def say_what_memory_ran_out():
    held = filled(1)
    error = raised(torch.OutOfMemoryError, torch.empty, 1 << 45, dtype=torch.uint8, device="cuda")
    assert_starts(error, "CUDA out of memory. Tried to allocate 32768.00 GiB. GPU 0 has a total capacity of ")
    assert_says(error, "default memory pool")
    assert isinstance(error, RuntimeError)
    twice = torch.cuda.mem_get_info()[1] * 2
    error = raised(torch.OutOfMemoryError, torch.empty, twice, dtype=torch.uint8, device="cuda")
    assert_says(error, "CUDA out of memory. Tried to allocate", "default memory pool")
    pool = gpupool.MemPool(limit=100 * MIB)
    with gpupool.torch.using(pool):
        inside = filled(4)
        assert_says(raised(torch.OutOfMemoryError, inside.repeat, 100), "limit is 100.0 MiB")
        assert pool.stats().live_bytes >= 4 * MIB, f"the tensor is not the pool's: {pool.stats()}"
    assert all_are(held, 1), "a tensor has other values after memory had run out"
    assert all_are(inside, 4), "a tensor has other values after its pool was full"


def say_so_in_a_backward_pass_too():
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


def ask_gpupools_callbacks():
    # Of what no device has, no callback is asked.
    asked, wanted = [], torch.cuda.get_device_properties(0).total_memory
    callback = gpupool.on_oom(lambda device, nbytes: asked.append(nbytes))
    raised(torch.OutOfMemoryError, torch.empty, wanted, dtype=torch.uint8, device="cuda")
    callback.remove()
    assert set(asked) == {wanted}, asked


def are_of_cudnn():
    torch.backends.cudnn.benchmark = True
    convolution = torch.nn.Conv2d(8, 16, 3, padding=1).cuda()
    for size in (32, 48, 32):
        data = torch.randn(4, 8, size, size, device="cuda", requires_grad=True)
        convolution(data).sum().backward()
        assert torch.isfinite(data.grad).all()


def losses(steps):
    """Return the losses of a small model's training."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)).cuda()
    optimiser = torch.optim.Adam(model.parameters())
    data = torch.randn(512, 256, device="cuda")
    target = data.sum(1, keepdim=True)
    found = []
    for _ in range(steps):
        optimiser.zero_grad(set_to_none=True)
        loss = ((model(data) - target) ** 2).mean()
        loss.backward()
        optimiser.step()
        found.append(float(loss))
    return found


def let_models_learn():
    found = losses(50)
    assert found[-1] < found[0] / 2, f"nothing was learnt: {found}"
    assert totals().allocations > 500, f"PyTorch allocates elsewhere: {totals()}"
    gc.collect()
    # PyTorch keeps cuBLAS's workspaces, of the threads of backward passes too.
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert totals().live_bytes <= 4 * MIB, f"memory is left: {totals()}"
    if gpupool.cublas.available:
        assert gpupool.cublas.handle() != 0, "no handle of cuBLAS"


def share_memory_between_streams():
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


def keep_memory_for_recorded_streams():
    side = torch.cuda.Stream()
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for value in range(1, 11):
        tensor = filled(value)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(4_000_000)
            total += tensor.sum()
        tensor.record_stream(side)
        del tensor
        others = [filled(-1) for _ in range(4)]
    torch.cuda.synchronize()
    assert int(total) == 55 * MIB, f"the side stream has read {int(total)}, not {55 * MIB}"
    del others


def are_of_two_gpus():
    if torch.cuda.device_count() < 2:
        print("torch: two GPUs: there is one")
        return
    one = filled(3)
    two = one.to("cuda:1")
    assert all_are(two, 3)
    assert gpupool.memory_stats(1).live_bytes >= 4 * MIB
    assert all_are(two.add_(1).to("cuda:0"), 4)
    with torch.cuda.device(1):
        assert torch.cuda.memory_allocated() >= 4 * MIB
    assert torch.cuda.memory_stats(1)["active_bytes.all.current"] == gpupool.memory_stats(1).live_bytes


class Numbers(torch.utils.data.Dataset):
    """Numbers beside a tensor of the parent's, which a forked worker has and must not touch."""

    def __init__(self):
        self.on_gpu = filled(1)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((100,), index)


def are_not_touched_by_workers():
    data = Numbers()
    for method in ("fork", "forkserver"):
        if method != "fork":
            data.on_gpu = None
        loader = torch.utils.data.DataLoader(
            data, batch_size=8, num_workers=2, pin_memory=True, multiprocessing_context=method
        )
        total = sum(int(batch.cuda(non_blocking=True)[:, 0].sum()) for batch in loader)
        assert total == 64 * 63 // 2, f"of {method} the workers brought {total}"
        if method == "fork":
            assert all_are(data.on_gpu, 1)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
