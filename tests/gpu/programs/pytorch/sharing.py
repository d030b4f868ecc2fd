"""Tensors in gpupool's memory that torch.multiprocessing sends to another process, which enables gpupool or not."""

import gc
import sys

import gpupool
import torch
import torch.multiprocessing
from gpupool._torch import place
from waiting import LONG, wait_until

MIB = 1 << 20
COUNT = 1 << 20


def words(start, count=COUNT, device="cuda"):
    """Return a tensor of integers that tell where they are."""
    return torch.arange(start, start + count, dtype=torch.int64, device=device)


def serve(received, sent, is_enabled):
    """Do what is asked: functions of this module, with what was received last time kept."""
    if is_enabled:
        gpupool.torch.enable()
    kept = []
    while True:
        try:
            name, *arguments = received.get()
            if name == "end":
                break
            answer = globals()[name](kept, *arguments)
        except Exception as error:
            answer = error.__class__.__name__, str(error)
        # What was received is held no longer by this frame.
        arguments = []
        sent.put(answer)
    kept.clear()
    gc.collect()


class Worker:
    """Another process."""

    def __init__(self):
        context = torch.multiprocessing.get_context("spawn")
        self._asked, self._answers = context.Queue(), context.Queue()
        self.process = context.Process(target=serve, args=(self._asked, self._answers, sys.argv[2] == "enabled"))
        self.process.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.is_alive():
            self._asked.put(("end",))
        self.process.join(LONG)

    def call(self, name, *arguments):
        self._asked.put((name, *arguments))
        return self._answers.get(timeout=LONG)


def holds_words(_kept, tensor, start):
    return bool((tensor == words(start, tensor.numel(), tensor.device).view(tensor.shape)).all())


def add(_kept, tensor, number):
    tensor.add_(number)
    torch.cuda.synchronize()
    return True


def keep(kept, *tensors):
    kept.extend(tensors)
    return len(kept)


def kept_holds_words(kept, index, start):
    return holds_words(kept, kept[index], start)


def same_storage(_kept, *tensors):
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors})


def drop(kept):
    kept.clear()
    gc.collect()
    return True


def make(kept, start):
    kept.append(words(start))
    return kept[-1]


def waits(kept, event, tensor, start):
    torch.cuda.current_stream().wait_event(event)
    return holds_words(kept, tensor, start)


def on_side_stream(kept):
    """Use what is kept on another stream, and let it go while that works."""
    tensor = kept.pop()
    side = torch.cuda.Stream()
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        total += tensor.sum()
    del tensor
    gc.collect()
    side.synchronize()
    return int(total)


def live():
    gc.collect()
    torch.cuda.ipc_collect()
    torch.empty(1, device="cuda")
    return gpupool.memory_stats(0).live_bytes


def go_through_a_queue_and_back():
    with Worker() as worker:
        for count in (1, 1000, COUNT, 64 * COUNT):
            tensor = words(count, count)
            assert worker.call("holds_words", tensor, count) is True
            assert worker.call("add", tensor, 7) is True
            assert holds_words(None, tensor, count + 7)
        back = worker.call("make", 5)
        assert holds_words(None, back, 5)
        assert (gpupool.memory_stats(0).attached_bytes > 0) == (sys.argv[2] == "enabled")
        back.add_(1)
        torch.cuda.synchronize()
        assert worker.call("kept_holds_words", 0, 6) is True
        del back
        assert worker.call("drop") is True


def go_many_at_once():
    tensors = [words(index, 1000 + 37 * index) for index in range(300)]
    with Worker() as worker:
        assert worker.call("keep", *tensors) == 300
        for index in (0, 17, 150, 299):
            assert worker.call("kept_holds_words", index, index) is True
        assert worker.call("drop") is True


def are_views_of_one_storage():
    whole = words(0).view(1024, 1024)
    views = [whole, whole[5:7], whole.t()[3], whole[:, ::2]]
    with Worker() as worker:
        assert worker.call("same_storage", *views) == 1
        assert worker.call("add", whole[5:7], 1) is True
        assert bool((whole[5:7].flatten() == words(5 * 1024 + 1, 2048)).all())
        assert bool((whole[4] == words(4 * 1024, 1024)).all())


def are_parameters_and_modules():
    module = torch.nn.Linear(100, 100).cuda().share_memory()
    expected = module.weight.detach().clone()
    with Worker() as worker:
        with torch.no_grad():
            assert worker.call("add", module.weight.detach(), 1) is True
        assert torch.equal(module.weight, expected + 1)
        assert module.weight.is_shared()


def come_with_events():
    event = torch.cuda.Event(interprocess=True)
    tensor = words(0)
    with Worker() as worker:
        torch.cuda._sleep(200_000_000)
        tensor.add_(9)
        event.record()
        assert worker.call("waits", event, tensor, 9) is True


def wait_for_the_senders_stream():
    tensor = words(0)
    with Worker() as worker:
        for step in range(1, 20):
            torch.cuda._sleep(20_000_000)
            tensor.add_(1)
            assert worker.call("holds_words", tensor, step) is True


def stay_until_they_are_let_go():
    before = live()
    tensor = words(3)
    with Worker() as worker:
        worker.call("keep", tensor)
        del tensor
        assert live() >= before + 8 * COUNT
        others = [words(0) for _ in range(50)]
        assert worker.call("kept_holds_words", 0, 3) is True
        del others
        assert worker.call("drop") is True
        wait_until(lambda: live() <= before, "the memory came back")


def are_used_on_other_streams():
    tensor = words(0, 1000)
    with Worker() as worker:
        worker.call("keep", tensor)
        assert worker.call("on_side_stream") == 1000 * 999 // 2


def send_on(kept):
    """Try to send what was received."""
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    try:
        queue.put(kept[0])
    except RuntimeError as error:
        return str(error)
    return "it was sent"


def are_not_sent_on():
    with Worker() as worker:
        assert worker.call("keep", words(1)) == 1
        answer = worker.call("send_on")
        assert "Attempted to send CUDA tensor received from another process" in answer, answer


def of_before_go_as_pytorchs_own():
    gpupool.torch.disable()
    own = words(4)
    gpupool.torch.enable()
    with Worker() as worker:
        assert worker.call("holds_words", own, 4) is True


def go_to_another_device():
    tensor = words(2, device="cuda:1")
    with Worker() as worker:
        assert worker.call("holds_words", tensor, 2) is True
        assert worker.call("add", tensor, 1) is True
    assert holds_words(None, tensor, 3)


if __name__ == "__main__":
    gpupool.torch.enable()
    assert place.is_taken()
    globals()[sys.argv[1]]()
