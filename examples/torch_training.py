"""Training a small transformer in PyTorch on sentences of varying length, with and without gpupool.

The same loop runs in two processes: on PyTorch's own allocator, and on gpupool's, which takes one line. It prints peak
memory and time side by side. The losses agree within the rounding noise of the GPU's sums.

Run it with: python examples/torch_training.py
It needs PyTorch 2.11 or later.
"""

import json
import subprocess
import sys
import time

STEPS, WARM_UP = 300, 50
WORDS, WIDTH, BATCH = 8000, 512, 16


def train(steps, seed=0, before_step=None):
    """Train for so many steps, and return the last loss and the seconds a step took, the first ones left out.

    `before_step` is called with each step's number: a program that shares the GPU can take turns there.
    """
    import torch
    from torch import nn

    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(WIDTH, nhead=8, dim_feedforward=4 * WIDTH, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, 4), nn.Linear(WIDTH, WORDS)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    lengths = torch.randint(32, 768, (steps,)).tolist()
    for step, length in enumerate(lengths):
        if before_step:
            before_step(step)
        if step == WARM_UP:
            torch.cuda.synchronize()
            start = time.perf_counter()
        sentences = torch.randint(WORDS, (BATCH, length), device="cuda")
        # The model learns to say each word again.
        loss = nn.functional.cross_entropy(model(sentences).flatten(0, 1), sentences.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    return loss.item(), (time.perf_counter() - start) / (steps - WARM_UP)


def measure(allocator):
    """Train on one allocator, and print what it took as JSON."""
    if allocator == "gpupool":
        import gpupool.torch

        gpupool.torch.enable()
    loss, seconds = train(STEPS)
    if allocator == "gpupool":
        peak = gpupool.memory_stats().peak_reserved_bytes
    else:
        import torch

        peak = torch.cuda.max_memory_reserved()
    print(json.dumps({"loss": loss, "seconds": seconds, "peak": peak}))


def main():
    """Run both allocators, each in a process of its own, and print a table."""
    print(f"{'':18}{'peak memory':>12}{'a step':>12}{'last loss':>12}")
    for allocator in ("PyTorch", "gpupool"):
        done = subprocess.run([sys.executable, __file__, allocator], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        took = json.loads(done.stdout.splitlines()[-1])
        peak, step = f"{took['peak'] / 2**20:.0f} MiB", f"{took['seconds'] * 1e3:.2f} ms"
        print(f"{allocator:18}{peak:>12}{step:>12}{took['loss']:>12.4f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1])
    else:
        main()
