"""A tensor in gpupool's memory, received where gpupool is not PyTorch's allocator, over a stand-in for PyTorch."""

import gc
import sys
from types import SimpleNamespace

import gpupool
import pytest
from gpupool._frameworks import sent_tensors
from gpupool._torch import place, received_tensors
from own_memory import MIB
from waiting import wait_until

STREAM = 0
COUNTER, PLACE_IN_IT, EVENT = b"/torch_1_2", 7, b"event"


class Storage:
    """`torch.UntypedStorage`, which keeps what it was made of."""

    def __init__(self, made_of):
        self._made_of = made_of

    def data_ptr(self):
        return self._made_of.__cuda_array_interface__["data"][0]

    def nbytes(self):
        return self._made_of.__cuda_array_interface__["shape"][0]


class Torch:
    """What is asked of PyTorch, which notes the calls."""

    def __init__(self):
        self.calls = []
        self.device = lambda kind, ordinal: (kind, ordinal)
        self._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda device: STREAM)
        self.cuda = SimpleNamespace(
            _lazy_init=lambda: self.calls.append("init"), Event=SimpleNamespace(from_ipc_handle=self._event)
        )
        self.reductions = SimpleNamespace(reduce_tensor=lambda tensor: (rebuild_cuda_tensor, ()))
        self.multiprocessing = SimpleNamespace(reductions=self.reductions)
        torch = self

        class Storages:
            @classmethod
            def _new_shared_cuda(cls, *arguments):
                raise AssertionError("PyTorch's allocator was to open it")

            @classmethod
            def _release_ipc_counter(cls, *arguments, device):
                torch.calls.append(("counter", *arguments, device))

        self.Storages = Storages

    def _event(self, place, handle):
        return SimpleNamespace(wait=lambda: self.calls.append(("event", place, handle)))

    def as_tensor(self, data, device):
        storage = Storage(data)
        return SimpleNamespace(is_cuda=True, untyped_storage=lambda: storage)


def rebuild_cuda_tensor(storages, arguments):
    """Do what PyTorch's function of this name does with the class."""
    return storages._new_shared_cuda(*arguments)


@pytest.fixture
def torch(monkeypatch, nothing_left):
    double = Torch()
    monkeypatch.setitem(sys.modules, "torch", double)
    monkeypatch.setattr(place, "_was_taken", False)
    return double


def receive(torch, buffer, offset=0, nbytes=MIB, waits=False):
    sent = (0, bytes(buffer.share()), nbytes, offset, COUNTER, PLACE_IN_IT, EVENT, waits)
    return sent_tensors.rebuild(rebuild_cuda_tensor, (torch.Storages, sent))


def test_it_is_the_senders_memory_until_its_storage_ends(torch):
    buffer = gpupool.empty(4 * MIB)
    storage = receive(torch, buffer, offset=MIB, nbytes=2 * MIB)
    assert (storage.data_ptr(), storage.nbytes()) == (buffer.ptr + MIB, 2 * MIB)
    assert torch.calls == ["init"]
    buffer.free()
    assert gpupool.memory_stats().live_bytes >= 4 * MIB
    del storage
    gc.collect()
    assert torch.calls == ["init", ("counter", COUNTER, PLACE_IN_IT, 0)]

    def is_back():
        gpupool.empty_cache()
        return gpupool.memory_stats().reserved_bytes == 0

    wait_until(is_back, "the sender has it back")


def test_the_stream_waits_for_the_senders_event_where_that_is_sent_along(torch):
    buffer = gpupool.empty(MIB)
    storage = receive(torch, buffer, waits=True)
    assert torch.calls == ["init", ("event", ("cuda", 0), EVENT)]
    del storage


def test_it_is_not_sent_on(torch):
    buffer = gpupool.empty(MIB)
    storage = receive(torch, buffer)
    own = gpupool.empty(MIB)
    interface = SimpleNamespace(__cuda_array_interface__={"data": (own.ptr, False), "shape": (MIB,)})
    reduce = torch.reductions.reduce_tensor
    received, others = (
        SimpleNamespace(is_cuda=True, untyped_storage=lambda storage=each: storage)
        for each in (storage, Storage(interface))
    )
    with pytest.raises(RuntimeError, match="received from another process"):
        reduce(received)
    assert reduce(others) == (rebuild_cuda_tensor, ())
    del storage, received
    gc.collect()
    assert received_tensors._received == {}


def test_what_cannot_be_attached_says_why(torch):
    buffer = gpupool.empty(MIB)
    token = bytes(buffer.share())
    buffer.free()
    with pytest.raises(gpupool.InvalidValue, match="freed"):
        sent_tensors.rebuild(
            rebuild_cuda_tensor, (torch.Storages, (0, token, MIB, 0, COUNTER, PLACE_IN_IT, EVENT, False))
        )


def test_where_gpupool_was_the_allocator_pytorch_opens_it(torch, monkeypatch):
    monkeypatch.setattr(place, "_was_taken", True)
    with pytest.raises(AssertionError, match="was to open it"):
        receive(torch, gpupool.empty(MIB))
