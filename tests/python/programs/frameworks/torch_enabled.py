"""`gpupool.torch.enable()` and `disable()` over PyTorch's real libraries and a double of its Python module.

Arguments: the library of calls, gpupool's allocator for PyTorch, and the name of a function. FETCHED_TORCH is the
folder of PyTorch's package.
"""

import os
import shutil
import sys
import tempfile
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType, SimpleNamespace

import gpupool
from errors import assert_says, raised
from gpupool._frameworks import sent_tensors
from gpupool._torch import compiler, library, place
from other_process import other_process
from pytorch_in_place import IN_PLACE, NATIVE, call, fill

MIB = 1 << 20


def import_torch():
    """Have a module as PyTorch's is when it was imported."""
    torch = sys.modules["torch"] = ModuleType("torch")
    fill("torch")
    call("set_up", NATIVE, 2)
    return torch


def live():
    return gpupool.memory_stats(0).live_blocks


def take(nbytes=4096):
    return call("allocate", IN_PLACE, nbytes)["block"]


def at_any_time():
    old = take()
    for _ in range(3):
        gpupool.torch.enable()
        gpupool.torch.enable()
        assert place.is_taken()
        assert call("in_place"), "PyTorch has another allocator"
        blocks = [take(), take(5 * MIB)]
        assert live() == 2, f"gpupool has {live()} live blocks of 2"
        gpupool.torch.disable()
        gpupool.torch.disable()
        other = take()
        assert live() == 2, "PyTorch takes memory from gpupool still"
        for block in (*blocks, other):
            call("drop", block)
        assert live() == 0, f"{live()} blocks did not come back"
    gpupool.torch.enable()
    call("drop", old)
    assert live() == 0


def with_memory_alive():
    gpupool.torch.enable()
    block, pointer = take(), call("raw_alloc", IN_PLACE, 4096)
    gpupool.torch.disable()
    assert live() == 2
    call("raw_delete", IN_PLACE, pointer)
    call("drop", block)
    assert live() == 0


def while_threads_allocate():
    is_over = threading.Event()

    def toggle():
        while not is_over.is_set():
            gpupool.torch.enable()
            gpupool.torch.disable()

    toggling = threading.Thread(target=toggle)
    toggling.start()
    try:
        for _ in range(5):
            call("turn_over", IN_PLACE, 4, 2000)
    finally:
        is_over.set()
        toggling.join()
    assert live() == 0, f"{live()} blocks did not come back"


def live_pinned():
    gpupool.empty_cache()
    return gpupool.pinned_stats().live_blocks


def take_pinned(nbytes=4096):
    return call("pinned_allocate", IN_PLACE, nbytes)["block"]


def with_pinned_memory():
    old = take_pinned()
    gpupool.torch.enable()
    call("drop", take_pinned())
    assert not call("pinned_in_place"), "pinned memory was not asked for"
    for _ in range(3):
        # A later call adds it.
        gpupool.torch.enable(pinned=True)
        gpupool.torch.enable(pinned=True)
        gpupool.torch.enable()
        pinned, block = take_pinned(), take()
        assert (live_pinned(), live()) == (1, 1)
        gpupool.torch.disable()
        gpupool.torch.disable()
        other = take_pinned()
        assert live_pinned() == 1, "PyTorch takes pinned memory from gpupool still"
        assert call("pinned_record", IN_PLACE, pinned, 0, 1, 1, 0), "what is left is not recorded"
        for held in (pinned, other, block):
            call("drop", held)
        assert (live_pinned(), live()) == (0, 0)
    gpupool.torch.enable(allocator=False, pinned=True)
    pinned, block = take_pinned(), take()
    assert (live_pinned(), live()) == (1, 0), "the memory of devices was not asked for"
    gpupool.torch.disable()
    for held in (pinned, block, old):
        call("drop", held)
    assert live_pinned() == 0


def with_pinned_memory_while_threads_allocate():
    is_over = threading.Event()

    def toggle():
        while not is_over.is_set():
            gpupool.torch.enable(pinned=True)
            gpupool.torch.disable()

    toggling = threading.Thread(target=toggle)
    toggling.start()
    try:
        wrong = [call("pinned_turn_over", IN_PLACE, 4, 1000) for _ in range(3)]
    finally:
        is_over.set()
        toggling.join()
    assert wrong == [0, 0, 0]
    assert live_pinned() == 0, f"{live_pinned()} blocks did not come back"


def with_pinned_memory_of_another():
    call("pinned_replace", 1, 0)
    gpupool.torch.enable(pinned=True)
    gpupool.torch.disable()
    call("pinned_replace", 0, 0)
    error = raised(gpupool.Error, gpupool.torch.enable, pinned=True)
    assert_says(error, "PyTorch's allocator of pinned memory", "was changed since")
    assert not place.is_taken(), "the allocator of devices' memory was taken all the same"


class Reduced:
    """A tensor, which PyTorch reduces to a handle."""

    def __init__(self, handle):
        self.handle = handle


def rebuild_cuda_tensor(handle):
    return call("receive", IN_PLACE, handle.hex().encode())["address"]


def reduce_tensor(tensor):
    return rebuild_cuda_tensor, (tensor.handle,)


def send_tensors(torch):
    """Have torch.multiprocessing."""
    reductions = SimpleNamespace(reduce_tensor=reduce_tensor)
    ForkingPickler.register(Reduced, reduce_tensor)
    torch.multiprocessing = SimpleNamespace(reductions=reductions)
    return reductions


def receive(_kept, pickled, is_enabled):
    torch = sys.modules.get("torch") or import_torch()
    send_tensors(torch)
    if is_enabled:
        gpupool.torch.enable()
    return ForkingPickler.loads(pickled) > 0


def with_tensors_that_are_sent():
    reductions = send_tensors(sys.modules["torch"])
    old = call("allocate", IN_PLACE, 4096)
    for _ in range(2):
        gpupool.torch.enable()
    block = call("allocate", IN_PLACE, 4096)

    def sent(address):
        return bytes(ForkingPickler.dumps(Reduced(bytes.fromhex(call("share", IN_PLACE, address)["handle"]))))

    pickled = sent(block["address"])
    # PyTorch's own memory goes as it did, also to processes that have no gpupool.
    assert (b"gpupool" in pickled, b"gpupool" in sent(old["address"])) == (True, False)
    assert reductions.reduce_tensor(Reduced(b"gpsh"))[0] is sent_tensors.rebuild
    with other_process() as other:
        assert other.call(receive, pickled, True)
    call("drop", old["block"])
    call("drop", block["block"])


def as_it_comes_with_gpupool():
    torch = import_torch()
    minor = ".".join(torch.__version__.split(".")[:2])
    with tempfile.TemporaryDirectory() as folder:
        compiler.FOLDER = Path(folder)
        shutil.copy(sys.argv[2], Path(folder) / f"allocator-{minor}.so")
        gpupool.torch.enable()
        assert place._library.path.parent == Path(folder), f"{place._library.path} was taken"
        call("drop", take())
        gpupool.torch.disable()


def for_another_version():
    torch = import_torch()
    with tempfile.TemporaryDirectory() as folder:
        compiler.FOLDER = Path(folder)
        shutil.copy(sys.argv[2], Path(folder) / "allocator-2.99.so")
        torch.__version__ = "2.99.0"
        # One that is compiled would be for the headers' version too.
        os.environ["CXX"] = "false"
        assert_says(raised(library.NoLibrary, library.load, torch), "not for 2.99")
    assert not call("in_place")


if __name__ == "__main__":
    if sys.argv[3] not in ("as_it_comes_with_gpupool", "for_another_version"):
        import_torch()
    globals()[sys.argv[3]]()
