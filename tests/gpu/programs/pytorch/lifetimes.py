"""Tensors of before gpupool was enabled, and of after it was disabled: each goes back where it came from."""

import gc
import sys
import threading

import gpupool
import late
import torch
from gpupool._torch import place
from late import MIB, all_are, filled, totals


def of_before_go_back():
    native = torch.cuda.memory_allocated()
    late.enable()
    live = totals().live_bytes
    assert all_are(late.before, 5)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        late.before.add_(1)
    late.before.record_stream(side)
    torch.cuda.current_stream().wait_stream(side)
    assert all_are(late.before.clone(), 6)
    torch.cuda.synchronize()
    late.before = None
    gc.collect()
    assert totals().live_bytes <= live, "a tensor of PyTorch's own went to gpupool"
    gpupool.torch.disable()
    torch.cuda.synchronize()
    # Its events are asked at the next request.
    torch.empty(1000, device="cuda")
    assert torch.cuda.memory_allocated() <= native - 64 * MIB, "it did not go back where it came from"


def of_meanwhile_go_back():
    late.enable()
    live = totals().live_bytes
    tensor, pointer = filled(3, 16 * MIB), torch.cuda.caching_allocator_alloc(MIB)
    native = None
    for _ in range(3):
        gpupool.torch.disable()
        assert not place.is_taken()
        if native is None:
            native = torch.cuda.memory_allocated()
        own = filled(4)
        assert totals().live_bytes <= live + 65 * MIB + MIB, "PyTorch takes memory from gpupool still"
        assert torch.cuda.memory_allocated() >= native + 4 * MIB, "PyTorch does not count its own"
        assert all_are(tensor, 3)
        late.enable()
        del own
    gpupool.torch.disable()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tensor.add_(1)
    tensor.record_stream(side)
    torch.cuda.current_stream().wait_stream(side)
    assert all_are(tensor.cpu(), 4)
    del tensor
    torch.cuda.caching_allocator_delete(pointer)
    gc.collect()
    torch.cuda.synchronize()
    gpupool.empty_cache()
    assert totals().live_bytes <= live, f"memory of gpupool's is left: {totals()}"
    assert all_are(late.before, 5)


def are_right_while_it_is_toggled():
    failures, is_over = [], threading.Event()

    def work(number):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                kept = []
                for step in range(200):
                    kept.append(filled(number * 1000 + step, 1000 * (step % 7 + 1) * (number + 1)))
                    if len(kept) > 5:
                        oldest = kept.pop(0)
                        assert all_are(oldest, number * 1000 + step - 5), f"a tensor of thread {number} is wrong"
        except BaseException as error:
            failures.append(error)

    def toggle():
        while not is_over.is_set():
            late.enable()
            gpupool.torch.disable()

    toggling = threading.Thread(target=toggle)
    toggling.start()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    is_over.set()
    toggling.join()
    assert not failures, failures
    torch.cuda.synchronize()


def of_16_threads_are_right():
    late.enable()
    live, failures = totals().live_blocks, []

    def work(number):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for step in range(200):
                    tensor = filled(number, 1000 * (step % 7 + 1) * (number + 1))
                    assert all_are(tensor * 2, 2 * number), f"a tensor of thread {number} is wrong"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert totals().live_blocks <= live + 8, f"tensors of threads are alive: {totals()}"


def at_the_end_of_the_process():
    late.enable()
    keep = [filled(1), late.before]
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        keep.append(filled(2))
    globals()["kept"] = keep, pool


if __name__ == "__main__":
    globals()[sys.argv[1]]()
