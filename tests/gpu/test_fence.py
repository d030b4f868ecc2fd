"""A fence through a device holds back work on every stream, and nothing on the host."""

import gpupool
from gpu_helpers import cupy, import_or_skip
from gpupool import _native

# About 50 ms of an H200.
SLEEP_CYCLES = 100_000_000


def event_on(torch, stream):
    event = torch.cuda.Event()
    event.record(stream)
    return event


def test_a_fence_holds_back_every_stream():
    torch = import_or_skip("torch")
    own = gpupool.Stream()
    # All of them but the default one wait for nobody by themselves.
    busy, other, default = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.default_stream()
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(SLEEP_CYCLES)
    event_on(torch, other).synchronize()
    assert not busy.query(), "work on another stream waited before there was a fence"
    assert _native.fence(own)
    # PyTorch has made its streams before; this one is new.
    later = cupy.cuda.Stream(non_blocking=True)
    streams = [other, default, *(torch.cuda.ExternalStream(stream.ptr) for stream in (own, later))]
    events = [event_on(torch, stream) for stream in streams]
    answers = [event.query() for event in events]
    assert not busy.query(), "the host waited for the GPU"
    assert answers == [False] * len(streams)
    for event in events:
        event.synchronize()
        assert busy.query()


def test_a_capture_survives():
    torch = import_or_skip("torch")
    own, pool = gpupool.Stream(), gpupool.MemPool()
    stream = torch.cuda.Stream()
    value = torch.zeros(1000, device="cuda")
    value.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream), pool.capture(stream):
        value.add_(1)
        assert not _native.fence(own)
    assert _native.fence(own)
    graph.replay()
    torch.cuda.synchronize()
    assert float(value.sum()) == 2000
