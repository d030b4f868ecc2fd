"""PyTorch's graphs with gpupool as the allocator of the whole process: their memory is theirs while they last."""

import gc

import gpupool
from enabled import MIB, torch, totals


def not_a_number(*shape):
    """Return a tensor that says if anybody computes with it, or writes into it."""
    return torch.full(shape, float("nan"), device="cuda")


def addresses_of(tensors):
    return {tensor.data_ptr() for tensor in tensors}


def has_its_memory_for_itself():
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


def main():
    has_its_memory_for_itself()
    share_a_pool_beside_one_of_gpupools()


if __name__ == "__main__":
    main()
