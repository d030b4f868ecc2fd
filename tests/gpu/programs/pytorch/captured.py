"""PyTorch's graphs with gpupool enabled after the first tensor."""

import gc
import sys

import gpupool
import late
import torch
from late import all_are, filled, totals


def warm(source):
    """Load the kernels, which no capture survives."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        ((source + 1) * 2).sum()
    torch.cuda.synchronize()
    return side


def capture(source, **named):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **named):
        result = (source + 1) * 2
    return graph, result


def has_its_memory_for_itself():
    source = filled(0)
    stream, pools = warm(source), totals().pools
    graph, result = capture(source, stream=stream)
    assert totals().pools == pools + 1, f"the graph has no pool of its own: {totals()}"
    for value in range(20):
        source.fill_(value)
        graph.replay()
        others = [filled(-1) for _ in range(8)]
        assert result.data_ptr() not in {other.data_ptr() for other in others}, "its memory was given to others"
        assert all_are(result, 2 * (value + 1)), f"replay {value} is wrong"
    del graph, result, others
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert totals().pools == pools, f"the graph's pool is left: {totals()}"


def shares_a_pool():
    source = filled(0)
    stream, pools = warm(source), totals().pools
    first, one = capture(source, stream=stream)
    second, two = capture(source, stream=stream, pool=first.pool())
    assert totals().pools == pools + 1, f"the graphs do not share a pool: {totals()}"
    source.fill_(4)
    first.replay()
    second.replay()
    assert all_are(one, 10)
    assert all_are(two, 10)
    first.reset()
    second.replay()
    assert all_are(two, 10)


def two_at_once():
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    source = filled(3)
    streams, results = [warm(source), warm(source)], []
    for graph, stream in zip(graphs, streams, strict=True):
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="relaxed")
    for stream in streams * 2:
        with torch.cuda.stream(stream):
            results.append((source + 1) * 2)
    for graph, stream in zip(graphs, streams, strict=True):
        with torch.cuda.stream(stream):
            graph.capture_end()
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    assert all(all_are(result, 8) for result in results), "a graph has computed something else"
    assert len({result.data_ptr() for result in results}) == 4, "graphs share memory"
    return graphs, results


def is_made_of_callables():
    torch.manual_seed(0)
    eager = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
    torch.manual_seed(0)
    other = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
    sample = torch.randn(32, 64, device="cuda")
    graphed = torch.cuda.make_graphed_callables(other, (sample,))
    optimisers = [torch.optim.SGD(model.parameters(), 0.1) for model in (eager, other)]
    for step in range(10):
        data = torch.randn(32, 64, device="cuda")
        losses = []
        for model, optimiser in zip((eager, graphed), optimisers, strict=True):
            # A graph's gradients stay where they are, so that those of before are not to be added to.
            optimiser.zero_grad(set_to_none=True)
            loss = (model(data) ** 2).mean()
            loss.backward()
            optimiser.step()
            losses.append(float(loss))
        assert abs(losses[0] - losses[1]) < 1e-4, f"in step {step} the losses are {losses}"


def is_of_pytorchs_own_from_before(graph, result, source):
    """Replay and drop a graph that was captured before gpupool was enabled."""
    source.fill_(6)
    graph.replay()
    assert all_are(result, 14)
    graph.reset()
    gc.collect()
    assert all_are(filled(1), 1)


def outlives_disable():
    source = filled(0)
    graph, result = capture(source, stream=warm(source))
    gpupool.torch.disable()
    source.fill_(2)
    graph.replay()
    assert all_are(result, 6)
    others = [filled(-1) for _ in range(20)]
    graph.replay()
    assert all(all_are(other, -1) for other in others), "the graph wrote into others' memory"
    del graph, result
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    gpupool.torch.enable()
    capture(source, stream=warm(source))


def frees_what_other_streams_used():
    source, other = filled(1), torch.cuda.Stream()
    stream = warm(source)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(4):
            tensor = source + 1
            other.wait_stream(stream)
            with torch.cuda.stream(other):
                result = tensor * 3
            tensor.record_stream(other)
            del tensor
        stream.wait_stream(other)
    graph.replay()
    torch.cuda.synchronize()
    assert all_are(result, 6)


def main(what):
    if what == "is_of_pytorchs_own_from_before":
        source = filled(0)
        graph, result = capture(source, stream=warm(source))
        late.enable()
        is_of_pytorchs_own_from_before(graph, result, source)
        return
    if what == "two_at_once":
        try:
            two_at_once()
        except RuntimeError as error:
            print(f"torch: two captures at once: PyTorch itself cannot: {error}")
            return
    late.enable()
    globals()[what]()


if __name__ == "__main__":
    main(sys.argv[1])
