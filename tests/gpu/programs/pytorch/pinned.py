"""PyTorch's pinned memory from gpupool, enabled after the first pinned tensor."""

import gc
import sys
import threading

import gpupool
import late
import torch
from late import MIB, all_are, in_16_threads
from waiting import wait_until

# About 20 ms of an H200.
SLEEP_CYCLES = 40_000_000

before = torch.full((MIB,), 5, dtype=torch.int32, pin_memory=True)


def live():
    """Return how many pinned blocks of gpupool's are held, or wait for streams."""
    return gpupool.pinned_stats().live_blocks


def pinned(value, count=MIB):
    """Return a pinned tensor of so many of the same integers."""
    return torch.full((count,), value, dtype=torch.int32, pin_memory=True)


def numbers(count, first=0):
    """Return a pinned tensor of so many integers, each another."""
    return torch.arange(first, first + count, dtype=torch.int32).pin_memory()


def assert_nothing_is_left():
    gc.collect()
    torch.cuda.synchronize()

    def is_nothing_left():
        # What waits for a stream or a graph is found free when memory is asked for, or given back.
        gpupool.empty_cache()
        return live() == 0

    wait_until(is_nothing_left, "all pinned blocks came back")


def serves_every_way():
    ways = {
        "pin_memory()": torch.arange(MIB).pin_memory(),
        "pin_memory=True": torch.empty(MIB, pin_memory=True),
        "a small one": torch.zeros(3, pin_memory=True),
        "like another": torch.empty_like(torch.empty(MIB), pin_memory=True),
        "of a storage": torch.UntypedStorage(MIB).pin_memory(),
    }
    assert live() == len(ways), f"{live()} pinned blocks are gpupool's, of {len(ways)}"
    for way, made in ways.items():
        assert made.is_pinned(), f"what comes by {way} is not pinned, to PyTorch"
    assert bool((ways["pin_memory()"] == torch.arange(MIB)).all())
    again = ways["pin_memory()"].pin_memory()
    assert again.data_ptr() == ways["pin_memory()"].data_ptr(), "what is pinned is pinned once more"
    empty = torch.empty(0, pin_memory=True)
    assert empty.numel() == 0
    large = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    assert large.is_pinned(), "a segment is not pinned, to PyTorch"
    large[-1] = 7
    assert int(large.cuda()[-1]) == 7
    del ways, made, again, empty, large
    assert_nothing_is_left()


def is_copied_right():
    streams = [torch.cuda.Stream() for _ in range(2)]
    for count in (1, 1000, MIB, 24 * MIB, 80 * MIB):
        for stream in streams:
            with torch.cuda.stream(stream):
                source, target = numbers(count, count), pinned(-1, count)
                device = source.to("cuda", non_blocking=True)
                target.copy_(device, non_blocking=True)
            stream.synchronize()
            assert torch.equal(source, target), f"{count} numbers came back as others"
            # A slice of each.
            half = count // 2
            target[:half].copy_(device[count - half :], non_blocking=True)
            torch.cuda.synchronize()
            assert torch.equal(target[:half], source[count - half :]), f"a slice of {count} numbers is another"
    del source, target, device
    assert_nothing_is_left()


def is_right_on_16_threads():
    def work(number):
        for step in range(60):
            count = 1000 << (step * 5 % 9)
            source = numbers(count, number * 100_000_000 + step)
            device = source.to("cuda", non_blocking=True)
            # Freed while the copy is under way.
            del source
            target = torch.empty(count, dtype=torch.int32, pin_memory=True)
            target.copy_(device, non_blocking=True)
            torch.cuda.current_stream().synchronize()
            expected = torch.arange(count, dtype=torch.int32) + (number * 100_000_000 + step)
            assert torch.equal(target, expected), f"thread {number}: {count} numbers are wrong in step {step}"

    in_16_threads(work)
    assert_nothing_is_left()


class Rows(torch.utils.data.Dataset):
    """Rows of numbers, and a pinned tensor that workers inherit."""

    def __init__(self):
        self.inherited = pinned(1, 1000)

    def __len__(self):
        return 256

    def __getitem__(self, index):
        self.inherited = None
        return torch.full((10_000,), index, dtype=torch.int32), index


def is_a_data_loaders(workers):
    loader = torch.utils.data.DataLoader(Rows(), batch_size=16, num_workers=workers, pin_memory=True)
    seen, most = 0, 0
    for rows, indices in loader:
        assert rows.is_pinned(), "a batch is not pinned"
        assert indices.is_pinned(), "a batch is not pinned"
        most = max(most, live())
        copied = rows.to("cuda", non_blocking=True)
        assert bool((copied == indices.to("cuda", non_blocking=True)[:, None]).all()), "a batch is wrong on the GPU"
        seen += len(rows)
    assert seen == 256
    assert most >= 2, f"at most {most} pinned blocks were gpupool's"
    del loader, rows, indices, copied
    assert_nothing_is_left()


def is_a_data_loaders_of_workers():
    is_a_data_loaders(2)


def is_a_data_loaders_of_this_process():
    is_a_data_loaders(0)


def keeps_activations():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6))).cuda()
    data = torch.randn(1024, 512, device="cuda")
    model(data).square().mean().backward()
    expected = [weight.grad.clone() for weight in model.parameters()]
    for _ in range(3):
        model.zero_grad()
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = model(data).square().mean()
        assert live() >= 6, f"{live()} activations are in gpupool's memory"
        loss.backward()
        for weight, gradient in zip(model.parameters(), expected, strict=True):
            assert torch.equal(weight.grad, gradient), "a gradient is another"
    del loss
    assert_nothing_is_left()


def waits_for_recorded_streams():
    side = torch.cuda.Stream()
    for value in range(1, 11):
        source = pinned(value)
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEP_CYCLES)
            device = source.to("cuda", non_blocking=True)
        del source
        # Were it handed out again, the copy would find these.
        others = [pinned(-1) for _ in range(4)]
        side.synchronize()
        assert all_are(device, value), f"memory of copy {value} was used again before it was done"
        del others
    # Once it is done, it serves again.
    gpupool.empty_cache()
    made = gpupool.pinned_stats().reserved_bytes
    for value in range(20):
        with torch.cuda.stream(side):
            device = pinned(value).to("cuda", non_blocking=True)
        side.synchronize()
    most = gpupool.pinned_stats().reserved_bytes
    assert most <= made + 64 * MIB, f"of {made} reserved bytes 20 copies made {most}"
    del device
    assert_nothing_is_left()


def is_a_graphs_own():
    side = torch.cuda.Stream()
    source, device, target = numbers(MIB), torch.zeros(MIB, dtype=torch.int32, device="cuda"), pinned(0)
    with torch.cuda.stream(side):
        device.copy_(source, non_blocking=True)
        (device + 1).sum()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        device.copy_(source, non_blocking=True)
        device += 1
        inside = torch.empty(MIB, dtype=torch.int32, pin_memory=True)
        inside.copy_(device, non_blocking=True)
        target.copy_(device, non_blocking=True)
    addresses = {source.data_ptr(), inside.data_ptr()}
    expected = source + 1
    # The graph reads the one and writes the other still.
    del source, inside
    others = [pinned(-1) for _ in range(16)]
    assert not addresses & {other.data_ptr() for other in others}, "a graph's memory was handed out again"
    for _ in range(5):
        target.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(target, expected), "a replay has read other memory"
    assert all(all_are(other, -1) for other in others), "a replay has written into others' memory"
    del graph, others, target
    gc.collect()
    assert_nothing_is_left()


def at_the_end_of_the_process():
    # Freed when modules are torn down, by threads that are ending, and with work under way.
    sys.held = [pinned(1), numbers(MIB)]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP_CYCLES)
        sys.copied = sys.held[0].to("cuda", non_blocking=True)
    thread = threading.Thread(target=lambda: pinned(2))
    thread.start()
    thread.join()


if __name__ == "__main__":
    late.enable()
    gpupool.torch.enable(pinned=True)
    globals()[sys.argv[1]]()
