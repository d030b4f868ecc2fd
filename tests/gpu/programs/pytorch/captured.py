"""PyTorch's graphs with gpupool enabled after the first tensor: their memory is theirs while they last."""

import gc
import sys

import gpupool
import late
import torch
from late import MIB, all_are, filled, totals


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


def not_a_number(*shape):
    """Return a tensor that says if anybody computes with it, or writes into it."""
    return torch.full(shape, float("nan"), device="cuda")


def addresses_of(tensors):
    return {tensor.data_ptr() for tensor in tensors}


def has_its_memory_for_itself():
    late.enable()
    torch.manual_seed(1)
    model = torch.nn.Linear(64, 64).cuda()
    source = torch.zeros(64, 64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            (model(source) ** 2).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    pools = totals().pools
    graph = torch.cuda.CUDAGraph()
    # On the stream of the first passes, so that cuBLAS's workspaces, which PyTorch keeps, are there.
    with torch.cuda.graph(graph, stream=side):
        answer = model(source)
        loss = (answer**2).sum()
        loss.backward()
    assert totals().pools == pools + 1, f"the graph has no pool of its own: {totals()}"
    gradients = [parameter.grad for parameter in model.parameters()]
    addresses = addresses_of((answer, loss, *gradients))
    for value in range(20):
        source.fill_(value)
        graph.replay()
        others = [not_a_number(size) for size in (1, 64, 4096, MIB) for _ in range(8)]
        assert not addresses & addresses_of(others), "the graph's memory was given to others"
        expected = torch.nn.functional.linear(source, model.weight, model.bias)
        assert torch.allclose(answer, expected, atol=1e-4), f"the answer of replay {value} is wrong"
        gradient = 2 * expected.T @ source
        assert torch.allclose(model.weight.grad, gradient, rtol=1e-3, atol=1e-1), f"gradient {value} is wrong"
        assert torch.isfinite(loss), f"the loss of replay {value} is {float(loss)}"
    del answer, loss, gradients, others
    model.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    others = [not_a_number(4096) for _ in range(100)]
    assert not addresses & addresses_of(others), "the memory of a living graph was given to others"
    graph.replay()
    # While the last replay is at work.
    del graph
    gc.collect()
    others += [not_a_number(4096) for _ in range(100)]
    torch.cuda.synchronize()
    assert all(bool(other.isnan().all()) for other in others), "the graph wrote into others' memory"
    assert totals().pools == pools, f"the graph's pool is left: {totals()}"


def share_a_pool_beside_one_of_gpupools():
    late.enable()
    handle, own = torch.cuda.graph_pool_handle(), gpupool.MemPool()
    stream = torch.cuda.Stream()
    x = torch.ones(MIB, device="cuda")
    # Loads the kernels, which no capture survives.
    (torch.empty_like(x).copy_(x) * 2).sum()
    torch.cuda.synchronize()
    graphs, outputs = [], []
    for factor in (2, 3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=handle, stream=stream), own.capture(stream) as memory:
            buffer = gpupool.empty(4 * MIB)
            assert buffer.pool_id == own.id, "the buffer is not the captured pool's"
            assert buffer.stream == stream.cuda_stream, "gpupool does not follow PyTorch's stream"
            view = torch.as_tensor(buffer, device="cuda").view(torch.float32)
            view.copy_(x)
            outputs.append(view * factor)
        graphs.append((graph, memory, buffer))
    for graph, _, _ in graphs:
        graph.replay()
    torch.cuda.synchronize()
    sums = [float(output.sum()) for output in outputs]
    assert sums == [2 * MIB, 3 * MIB], f"the graphs have computed {sums}"
    graphs[0][0].reset()
    graphs[1][0].replay()
    torch.cuda.synchronize()
    found = float(outputs[1].sum())
    assert found == 3 * MIB, f"without the first the second graph has computed {found}"


def shares_a_pool():
    late.enable()
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


def capture_two():
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


def two_at_once():
    try:
        capture_two()
    except RuntimeError as error:
        print(f"torch: two captures at once: PyTorch itself cannot: {error}")
        return
    late.enable()
    capture_two()


def is_of_pytorchs_own_from_before():
    source = filled(0)
    graph, result = capture(source, stream=warm(source))
    late.enable()
    source.fill_(6)
    graph.replay()
    assert all_are(result, 14)
    graph.reset()
    gc.collect()
    assert all_are(filled(1), 1)


def is_made_of_callables():
    late.enable()
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


def outlives_disable():
    late.enable()
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
    late.enable()
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


if __name__ == "__main__":
    globals()[sys.argv[1]]()
