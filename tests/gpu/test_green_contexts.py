"""Streams of green contexts, which have a part of the GPU's processors: handles, leases, memory and captures there."""

import ctypes
import gc
import json

import gpupool
import pytest
from gpu_helpers import (
    BY_STREAM,
    PROGRAMS,
    STREAM_FUNCTIONS,
    cupy,
    import_or_skip,
    in_threads,
    pool_or_skip,
    run_program,
    stream_of,
)
from long_kernel import LongKernel, spin
from partitions import Refused, contexts_of, driver, halves, made
from processes import functions_of
from products import Product
from waiting import PATIENCE

pytestmark = pytest.mark.device_memory(gib=3)

MIB = 1 << 20
NOT_READY = 600
# About 100 ms of an H200, in which the host does what comes next.
SPIN_CYCLES = int(200_000_000 * PATIENCE)
MARK = r"""
extern "C" __global__ void mark(unsigned *blocks, long long cycles) {
  unsigned processor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(processor));
  long long start = clock64();
  while (clock64() - start < cycles) {}
  if (!threadIdx.x) atomicAdd(blocks + processor, 1u);
}
"""


def at(address):
    return ctypes.c_void_p(address)


def on(stream):
    """Return CuPy's view of the stream at this address, which frees no stream."""
    return cupy.cuda.ExternalStream(stream)


@pytest.fixture
def parts():
    """Return two disjoint parts of the GPU."""
    cupy.cuda.runtime.deviceSynchronize()
    try:
        parts = halves()
    except (AttributeError, Refused) as error:
        pytest.skip(f"no green contexts here: {error}")
    yield parts
    gc.collect()
    for part in parts:
        part.close()
    gpupool.empty_cache()


@pytest.fixture
def streams(parts):
    """Return the addresses of two streams, one of each part."""
    return [part.stream() for part in parts]


def filled(nbytes, stream, value):
    """Return a buffer full of a byte, as the stream's work."""
    buffer = gpupool.empty(nbytes, stream)
    with on(stream):
        cupy.asarray(buffer).fill(value)
    return buffer


def total(array):
    """Wait for the device, and sum up the bytes."""
    cupy.cuda.runtime.deviceSynchronize()
    return int(array.sum(dtype=cupy.int64))


# What gpupool rests on.


def test_the_driver_says_whose_a_stream_is(parts, streams):
    plain, primary = gpupool.Stream(), made("cuCtxGetCurrent")
    told = {"plain": contexts_of(plain.ptr), "parts": [contexts_of(stream) for stream in streams], "primary": primary}
    print(json.dumps({"sms": [part.sms for part in parts], **told}))
    assert told["plain"] == (primary, primary, None)
    for part, (context, parent, green) in zip(parts, told["parts"], strict=True):
        assert (parent, green) == (primary, part.green)
        assert context == made("cuCtxFromGreenCtx", at(part.green)) != primary


def test_an_event_of_the_device_has_the_work_of_a_part(streams):
    # Loaded before a kernel is busy, which loading may wait for.
    spin(1)
    for record in (
        lambda event: driver.cuEventRecord(event, at(streams[0])),
        lambda event: driver.cuCtxRecordEvent(at(made("cuCtxGetCurrent")), event),
    ):
        event = at(made("cuEventCreate", 2))
        with on(streams[0]):
            spin(SPIN_CYCLES)
        assert record(event) == 0
        assert driver.cuEventQuery(event) == NOT_READY
        assert driver.cuStreamWaitEvent(at(streams[1]), event, 0) == 0
        assert driver.cuEventSynchronize(event) == 0
        assert driver.cuStreamQuery(at(streams[0])) == 0
        assert driver.cuEventDestroy_v2(event) == 0


def test_kernels_run_on_the_processors_of_their_part(parts, streams):
    mark = cupy.RawKernel(MARK, "mark")
    mark((1,), (1,), (cupy.zeros(1024, dtype=cupy.uint32), 1))
    seen = [cupy.zeros(1024, dtype=cupy.uint32) for _ in streams]
    cupy.cuda.runtime.deviceSynchronize()
    for stream, blocks in zip(streams, seen, strict=True):
        with on(stream):
            mark((2048,), (256,), (blocks, 20_000))
    cupy.cuda.runtime.deviceSynchronize()
    processors = [set(cupy.flatnonzero(blocks).get().tolist()) for blocks in seen]
    both = processors[0] & processors[1]
    print(json.dumps({"processors": [len(which) for which in processors], "of both": len(both)}))
    assert [len(which) for which in processors] == [part.sms for part in parts]
    assert not both


# Handles and leases.


@pytest.mark.parametrize("name", [name for name in STREAM_FUNCTIONS if name not in BY_STREAM])
def test_every_checkout_sets_the_stream(name, streams):
    pool = pool_or_skip(name)
    plain = gpupool.Stream()
    handle = pool.handle(plain)
    for stream in [*streams, plain.ptr, *streams]:
        assert pool.handle(stream) == handle
        assert stream_of(pool, handle) == stream
    assert in_threads(2, lambda number: stream_of(pool, pool.handle(streams[number]))) == streams


def test_leases_on_both_parts_at_once_are_right_and_none_is_made(streams):
    pool, products = pool_or_skip("cublas"), [Product(1), Product(2)]
    pool.trim()
    pool.warm(2)

    def turn():
        with pool.lease(streams[0]) as one, pool.lease(streams[1]) as other:
            assert [stream_of(pool, int(lease)) for lease in (one, other)] == streams
            for _ in range(10):
                for lease, product in zip((one, other), products, strict=True):
                    product.compute(int(lease), 2)

    turn()
    warmed = pool.stats()
    for _ in range(20):
        turn()
        cupy.cuda.runtime.deviceSynchronize()
        assert [product.is_right() for product in products] == [True, True]
    stats = pool.stats()
    print(json.dumps({"created": [warmed.created, stats.created], "workspaces": stats.workspace_bytes}))
    assert (stats.created, stats.failures, stats.leased) == (warmed.created, warmed.failures, 0)
    # A workspace of its own for each stream.
    assert stats.workspace_bytes >= 2 * 4 * MIB


# Memory.


@pytest.mark.parametrize("owner", ["the other part", "the whole GPU"])
def test_memory_waits_for_the_part_that_uses_it(streams, owner):
    plain = gpupool.Stream()
    own, other = streams[0] if owner == "the other part" else plain.ptr, streams[1]
    buffer, result = filled(8 * MIB, own, 1), cupy.zeros(8 * MIB, dtype=cupy.uint8)
    view, kernel = cupy.asarray(buffer), LongKernel()
    with on(other):
        # Loads what copies.
        result[:] = view
    cupy.cuda.runtime.deviceSynchronize()
    result.fill(0)
    cupy.cuda.runtime.deviceSynchronize()
    with on(other):
        kernel.begin()
        result[:] = view
    del view
    buffer.record_stream(other)
    buffer.free()
    others = [filled(8 * MIB, own, 2) for _ in range(4)]
    was_busy = driver.cuStreamQuery(at(other)) == NOT_READY
    kernel.end()
    assert total(result) == 8 * MIB
    assert was_busy, "the host waited for the GPU"
    del others


# Captures.


@pytest.mark.parametrize("mode", ["Global", "ThreadLocal", "Relaxed"])
def test_a_graph_of_a_part_replays(streams, mode):
    pool, mem_pool, products = pool_or_skip("cublas"), gpupool.MemPool(), [Product(8), Product(9)]
    graphs, memories, copies = [], [], []
    for stream, product in zip(streams, products, strict=True):
        product.compute(pool.handle(stream), 1)
        cupy.asarray(gpupool.empty(product.out.nbytes, stream)).fill(0)
    cupy.cuda.runtime.deviceSynchronize()
    for stream, product in zip(streams, products, strict=True):
        # Loads what copies.
        copy = cupy.zeros_like(product.out)
        copy[:] = product.out
        cupy.cuda.runtime.deviceSynchronize()
        with on(stream) as current:
            current.begin_capture(getattr(cupy.cuda.runtime, f"streamCaptureMode{mode}"))
            with mem_pool.capture(stream) as memory:
                product.compute(pool.handle(stream))
                kept = gpupool.empty(product.out.nbytes, stream)
                # Not by `asarray`, which synchronizes the stream.
                memory_of = cupy.cuda.UnownedMemory(kept.ptr, kept.nbytes, kept)
                inside = cupy.ndarray(product.out.shape, cupy.float32, cupy.cuda.MemoryPointer(memory_of, 0))
                inside[:] = product.out
                copy[:] = inside
                del inside, memory_of
                kept.free()
            graphs.append(current.end_capture())
        memories.append(memory)
        copies.append(copy)
    for _ in range(10):
        for graph, stream in zip(graphs, streams, strict=True):
            graph.launch(on(stream))
        cupy.cuda.runtime.deviceSynchronize()
        for product, copy in zip(products, copies, strict=True):
            assert float(abs(copy - product.expected).max()) < 1
            assert product.is_right()
            copy.fill(0)
    # A stream of the whole GPU can replay it as well.
    plain = gpupool.Stream()
    graphs[0].launch(on(plain.ptr))
    cupy.cuda.runtime.deviceSynchronize()
    assert products[0].is_right()
    del graphs
    for memory in memories:
        memory.reset()


# The end of a green context, in a process of its own, since what the driver then does is what is looked at.


@pytest.mark.parametrize("what", functions_of(PROGRAMS / "ends/with_green_contexts.py"))
def test_a_green_context_ends(what):
    print(run_program("ends/with_green_contexts.py", what))


# As users make them.


def test_cuda_core_s_green_contexts():
    core = import_or_skip("cuda.core")
    if not hasattr(core, "SMResourceOptions"):
        pytest.skip("this cuda.core has no green contexts")
    device = core.Device(0)
    device.set_current()
    parts, _rest = device.resources.sm.split(core.SMResourceOptions(count=(32, 32)))
    contexts = [device.create_context(core.ContextOptions(resources=[part])) for part in parts]
    streams = [context.create_stream() for context in contexts]
    products = [Product(10), Product(11)]
    for _ in range(5):
        for stream, product in zip(streams, products, strict=True):
            with gpupool.cublas.lease(stream) as lease:
                assert stream_of(gpupool.cublas, int(lease)) == int(stream.handle)
                product.compute(int(lease))
        cupy.cuda.runtime.deviceSynchronize()
        assert [product.is_right() for product in products] == [True, True]
    buffers = [gpupool.empty(MIB, stream) for stream in streams]
    assert [buffer.device for buffer in buffers] == [0, 0]
    del buffers
    gc.collect()
    device.sync()
    gpupool.empty_cache()
    for stream, context in zip(streams, contexts, strict=True):
        stream.close()
        context.close()
