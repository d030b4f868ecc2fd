"""Tensors in 16 threads, also while gpupool is enabled and disabled, and tensors that live as the process ends."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import gpupool
import late
import torch
from late import all_are, filled, in_16_threads, totals


def are_right_while_it_is_toggled():
    is_over = threading.Event()

    def work(number):
        kept = []
        for step in range(200):
            kept.append(filled(number * 1000 + step, 1000 * (step % 7 + 1) * (number + 1)))
            if len(kept) > 5:
                oldest = kept.pop(0)
                assert all_are(oldest, number * 1000 + step - 5), f"a tensor of thread {number} is wrong"

    def toggle():
        while not is_over.is_set():
            late.enable()
            gpupool.torch.disable()

    with ThreadPoolExecutor(1) as executor:
        toggling = executor.submit(toggle)
        try:
            in_16_threads(work)
        finally:
            is_over.set()
        toggling.result()


def of_16_threads_are_right():
    late.enable()
    live = totals().live_blocks

    def work(number):
        stream = torch.cuda.current_stream()
        for step in range(200):
            tensor = filled(number, 1000 * (step % 7 + 1) * (number + 1))
            assert all_are(tensor * 2, 2 * number), f"a tensor of thread {number} is wrong"
            assert gpupool.empty(64).stream == stream.cuda_stream, "gpupool does not follow PyTorch's stream"

    in_16_threads(work)
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
