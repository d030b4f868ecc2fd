"""Memory ranges on a GPU: arrays of frameworks over them, graphs that hold their addresses, and a KV cache."""

import gc
from pathlib import Path

import gpupool
import pytest
from gpu_helpers import import_or_skip, run_python

pytestmark = pytest.mark.device_memory(gib=3)

PAGE = 2 << 20
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def pool():
    return gpupool.MemPool()


@pytest.fixture
def stream():
    return gpupool.Stream()


def test_a_torch_tensor_is_of_all_bytes_and_a_graph_reads_what_comes_and_goes(pool):
    torch = import_or_skip("torch")
    stream = torch.cuda.Stream()
    ranged = pool.reserve_range(64 * PAGE)
    ranged.commit([0, 5], stream, fill=0)
    words = torch.from_dlpack(ranged).view(torch.int32).view(64, -1)
    assert words.data_ptr() == ranged.ptr
    out = torch.zeros(words.shape[1], dtype=torch.int32, device="cuda")
    page = torch.tensor([5], device="cuda")
    with torch.cuda.stream(stream):
        words[5] = 7
        out.copy_(words[page][0])
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out.copy_(words[page][0])
    for turn in range(20):
        # Its memory goes, serves another page, and other memory comes.
        ranged.decommit([5], stream)
        stream.synchronize()
        ranged.commit([9], stream)
        ranged.commit([5], stream)
        with torch.cuda.stream(stream):
            words[9] = 100 + turn
            words[5] = turn
            graph.replay()
        ranged.decommit([9], stream)
        stream.synchronize()
        assert (out == turn).all()
    assert pool.stats().reserved_bytes <= 4 * PAGE
    with pytest.raises(gpupool.InvalidValue, match="DLPack"):
        ranged.free(stream)
    del words, graph
    gc.collect()
    ranged.free(stream)


def test_a_cupy_array_is_of_all_bytes(pool, stream):
    array_module = import_or_skip("cupy")
    ranged = pool.reserve_range(64 * PAGE)
    ranged.commit([0, 3], stream, fill=5)
    stream.synchronize()
    for array in (array_module.from_dlpack(ranged), array_module.asarray(ranged)):
        assert (array.nbytes, array.data.ptr) == (ranged.nbytes, ranged.ptr)
        assert int(array[3 * PAGE : 4 * PAGE].astype("u4").sum()) == 5 * PAGE
    with array_module.cuda.Stream(non_blocking=True) as other:
        ranged.commit([7], other)
        array[7 * PAGE : 8 * PAGE] = 9
        ranged.decommit([7], other)
        other.synchronize()
    del array
    gc.collect()


def test_two_models_share_a_gpu_by_ranges_and_compute_what_they_would_with_all_of_it():
    import_or_skip("torch")
    printed = run_python(EXAMPLES / "kv_cache.py", "12", "1000")
    assert "the same, bit for bit" in printed
