"""cuBLAS's workspaces: no two streams and no two graphs share one, and none goes away under a graph."""

import ctypes
import gc
import threading

import gpupool
import pytest
from gpu_helpers import cupy, in_threads_until_returned, pool_or_skip
from products import Product
from waiting import wait_until

pytestmark = pytest.mark.device_memory(gib=3)

MIB = 1 << 20


@pytest.fixture
def pool():
    """Return the pool, with no workspace of a graph left from before."""
    pool = pool_or_skip("cublas")
    gc.collect()
    pool.trim()
    return pool


@pytest.fixture
def stream():
    return gpupool.Stream()


def captured(pool, stream, product):
    """Capture the product. The handle is asked for in the capture."""
    with cupy.cuda.ExternalStream(stream.ptr) as current:
        current.begin_capture()
        product.compute(pool.handle(stream))
        return current.end_capture()


def launch(graph, stream):
    graph.launch(cupy.cuda.ExternalStream(stream.ptr))


def test_graphs_at_once_share_none(pool, stream):
    other, products = gpupool.Stream(), [Product(1), Product(2)]
    # Both on one stream, as programs capture, and with one handle.
    graphs = [captured(pool, stream, product) for product in products]
    for _ in range(50):
        launch(graphs[0], stream)
        launch(graphs[1], other)
        cupy.cuda.runtime.deviceSynchronize()
        assert [product.is_right() for product in products] == [True, True]


def test_streams_at_once_share_none(pool, stream):
    streams, products = [stream, gpupool.Stream()], [Product(1), Product(2)]
    for _ in range(20):
        for _ in range(10):
            for on, product in zip(streams, products, strict=True):
                product.compute(pool.handle(on), 1)
        cupy.cuda.runtime.deviceSynchronize()
        assert [product.is_right() for product in products] == [True, True]


def test_a_graph_keeps_its_own_when_thread_and_handle_are_gone(pool, stream):
    product, before = Product(3), pool.stats().workspace_bytes
    (graph,) = in_threads_until_returned(pool, 1, lambda _: captured(pool, stream, product))
    assert pool.trim() >= 1
    kept = pool.stats().workspace_bytes - before
    assert kept >= 4 * MIB
    # Whatever was freed is somebody else's by now.
    junk = [cupy.cuda.runtime.malloc(32 * MIB) for _ in range(16)]
    for address in junk:
        cupy.cuda.runtime.memset(address, 255, 32 * MIB)
    cupy.cuda.runtime.deviceSynchronize()
    for _ in range(3):
        launch(graph, stream)
        cupy.cuda.runtime.deviceSynchronize()
        assert product.is_right()
    for address in junk:
        cupy.cuda.runtime.free(address)
    del graph
    wait_until(lambda: (pool.trim(), pool.stats().workspace_bytes)[1] == before, "the graph's workspace is given back")


def test_graphs_that_are_gone_leave_theirs_to_the_next(pool, stream):
    product, before = Product(4), pool.stats().workspace_bytes
    captured(pool, stream, product)
    one = pool.stats().workspace_bytes - before
    for _ in range(20):
        graph = captured(pool, stream, product)
        launch(graph, stream)
        cupy.cuda.runtime.deviceSynchronize()
        assert product.is_right()
        del graph
    # The driver ends graphs on a thread of its own, a few captures later when the machine is busy.
    assert pool.stats().workspace_bytes <= before + 10 * one


def test_a_graph_allocates_nothing(pool, stream):
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
    product, graph, at = Product(5), ctypes.c_void_p(), ctypes.c_void_p
    assert driver.cuStreamBeginCapture_v2(at(stream.ptr), 0) == 0
    product.compute(pool.handle(stream), 1)
    assert driver.cuStreamEndCapture(at(stream.ptr), ctypes.byref(graph)) == 0
    assert driver.cuGraphGetNodes(graph, None, ctypes.byref(count)) == 0
    nodes, kinds = (ctypes.c_void_p * count.value)(), set()
    assert driver.cuGraphGetNodes(graph, nodes, ctypes.byref(count)) == 0
    for node in nodes:
        kind = ctypes.c_int()
        assert driver.cuGraphNodeGetType(at(node), ctypes.byref(kind)) == 0
        kinds.add(kind.value)
    assert driver.cuGraphDestroy(graph) == 0
    # CU_GRAPH_NODE_TYPE_KERNEL and _MEMSET: not _MEM_ALLOC (10), which cuBLAS's own workspace would be.
    assert kinds <= {0, 2}


def test_threads_that_trim_spoil_no_capture_and_no_result(pool, stream):
    product, ended, failed = Product(6), threading.Event(), []

    def trim():
        try:
            while not ended.is_set():
                pool.trim()
        except BaseException as error:
            failed.append(error)

    trimmer = threading.Thread(target=trim)
    trimmer.start()
    try:
        for _ in range(20):
            graph = captured(pool, stream, product)
            launch(graph, stream)
            stream.synchronize()
            assert product.is_right()
            del graph
    finally:
        ended.set()
        trimmer.join()
    assert not failed, failed
