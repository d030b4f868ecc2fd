"""Limits, failures, addresses and settings of PyTorch's with gpupool enabled after the first tensor."""

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
    del held
    pool = gpupool.MemPool(limit=100 * MIB)
    with gpupool.torch.using(pool):
        assert_says(raised(torch.OutOfMemoryError, filled, 1, 100 * MIB), "limit is 100.0 MiB")
    assert isinstance(error, RuntimeError)
    assert all_are(filled(1), 1)


def tell_observers():
    told = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: told.append(numbers))
    raised(torch.OutOfMemoryError, torch.empty, 1 << 45, dtype=torch.uint8, device="cuda")
    ((device, asked, total, free),) = told
    assert (device, asked) == (0, 1 << 45), told
    assert total > 0, told
    assert free >= 0, told


def ask_gpupools_callbacks():
    # Of what no device has, no callback is asked.
    asked, wanted = [], torch.cuda.get_device_properties(0).total_memory
    callback = gpupool.on_oom(lambda device, nbytes: asked.append(nbytes))
    raised(torch.OutOfMemoryError, torch.empty, wanted, dtype=torch.uint8, device="cuda")
    callback.remove()
    assert set(asked) == {wanted}, asked


def are_fractions():
    torch.cuda.set_per_process_memory_fraction(0.5)
    told = torch.cuda.get_per_process_memory_fraction(), gpupool.get_per_process_memory_fraction(0)
    assert told == (0.5, 0.5), told
    half = torch.cuda.get_device_properties(0).total_memory // 2
    raised(torch.OutOfMemoryError, torch.empty, half + 256 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.set_per_process_memory_fraction(1.0)
    for wrong in (2.0, -1.0):
        raised(ValueError, torch.cuda.set_per_process_memory_fraction, wrong)


def are_addresses():
    live = totals().live_bytes
    pointer = torch.cuda.caching_allocator_alloc(MIB)
    side = torch.cuda.Stream()
    other = torch.cuda.caching_allocator_alloc(MIB, 0, side)
    assert totals().live_bytes == live + 2 * MIB, "memory by its address is not gpupool's"
    torch.cuda.caching_allocator_delete(pointer)
    torch.cuda.caching_allocator_delete(other)
    assert totals().live_bytes == live
    assert torch.empty(0, device="cuda").data_ptr() == 0, "an empty tensor takes memory"


def are_of_cudnn():
    torch.backends.cudnn.benchmark = True
    convolution = torch.nn.Conv2d(8, 16, 3, padding=1).cuda()
    for size in (32, 48, 32):
        data = torch.randn(4, 8, size, size, device="cuda", requires_grad=True)
        convolution(data).sum().backward()
        assert torch.isfinite(data.grad).all()


def are_without_a_cache():
    torch.cuda.caching_allocator_enable(False)
    tensor = filled(1)
    torch.cuda.caching_allocator_enable(True)
    assert all_are(tensor, 1)
    del tensor
    assert all_are(filled(2), 2)


def are_of_the_profiler():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as profiler:
        tensor = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
        del tensor
    events = profiler.key_averages()
    most = max(abs(event.self_device_memory_usage) for event in events)
    assert most >= 10 * MIB, f"the largest of the profiler's memory column is {most} bytes"
    assert "CUDA Mem" in events.table(sort_by="self_cuda_memory_usage", row_limit=5)


def are_of_pinned_memory_too():
    host = torch.ones(MIB, pin_memory=True)
    device = host.to("cuda", non_blocking=True)
    assert bool((device == 1).all())
    back = device.to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    assert bool((back == 1).all())


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
