"""torch.compile with graph trees on gpupool's memory: forward and backward, recompiled for new shapes.

It prints why and ends well where nothing can be compiled.
"""

import gc
import sys

import gpupool
import late
import torch
from late import MIB


def model_and_copy():
    torch.manual_seed(0)
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        layers = torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64), torch.nn.LayerNorm(64)
        models.append(torch.nn.Sequential(*layers).cuda())
    return models


def can_compile():
    """Compile something on PyTorch's own allocator."""
    try:
        torch.compile(lambda x: (x + 1) * 2)(torch.ones(100, device="cuda"))
    except Exception as error:
        print(f"torch: compile: PyTorch cannot compile here: {type(error).__name__}: {str(error).splitlines()[0]}")
        return False
    return True


def trees():
    return torch._inductor.cudagraph_trees.get_manager(0, create_if_none_exists=False)


def train(mode):
    eager, other = model_and_copy()
    compiled = torch.compile(other, mode=mode, dynamic=False)
    for step, rows in enumerate([16, 16, 16, 32, 32, 16, 48, 48, 16, 32, 48, 16] * 2):
        torch.compiler.cudagraph_mark_step_begin()
        data = torch.randn(rows, 64, device="cuda")
        for model in (eager, compiled):
            loss = (model(data) ** 2).mean()
            loss.backward()
        for one, two in zip(eager.parameters(), other.parameters(), strict=True):
            close = torch.allclose(one.grad, two.grad, rtol=1e-2, atol=1e-3)
            assert close, f"in step {step} a gradient is {(one.grad - two.grad).abs().max()} off"
            one.grad = two.grad = None
        # Others use memory meanwhile.
        others = [torch.full((rows * MIB // 16,), float("nan"), device="cuda") for _ in range(4)]
        assert all(bool(each.isnan().all()) for each in others)
    assert trees() is not None, "there are no graph trees"


def infer(mode):
    eager, other = model_and_copy()
    compiled = torch.compile(other, mode=mode, dynamic=False)
    with torch.no_grad():
        for rows in [8, 8, 8, 24, 24, 8, 24, 8] * 3:
            torch.compiler.cudagraph_mark_step_begin()
            data = torch.randn(rows, 64, device="cuda")
            first = compiled(data).clone()
            assert torch.allclose(first, eager(data), rtol=1e-2, atol=1e-3), f"the answer for {rows} rows is wrong"
    assert trees() is not None, "there are no graph trees"


def main(what):
    if not can_compile():
        return
    late.enable()
    skips = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    mode = "reduce-overhead"
    if what == "keeps_outputs_that_live_on":
        keeps_outputs_that_live_on()
    elif what == "outlives_disable":
        infer(mode)
        torch._dynamo.reset()
        gpupool.torch.disable()
        infer(mode)
    else:
        {"train": train, "infer": infer}[what](mode)
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == skips, "graphs were left out"
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def keeps_outputs_that_live_on():
    """Run a tree whose first output lives while the second function runs, which takes checkpoints."""

    @torch.compile(mode="reduce-overhead", dynamic=False)
    def first(x):
        return x * 2 + 1, x.sum(0)

    @torch.compile(mode="reduce-overhead", dynamic=False)
    def second(x):
        return (x @ x.T).relu()

    for step in range(12):
        torch.compiler.cudagraph_mark_step_begin()
        data = torch.full((32, 32), float(step), device="cuda")
        one, total = first(data)
        if step % 3 == 0:
            del total
        two = second(one)
        expected = (data * 2 + 1) @ (data * 2 + 1).T
        assert torch.allclose(two, expected.relu(), rtol=1e-2), f"step {step} is wrong"
        assert torch.allclose(one, data * 2 + 1), f"the first output of step {step} was overwritten"
        if step % 4 == 0:
            two = second(two.clone())
            assert torch.isfinite(two).all()
        del one, two


if __name__ == "__main__":
    main(sys.argv[1])
