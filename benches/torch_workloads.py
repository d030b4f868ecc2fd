"""Programs in PyTorch whose steps are timed, or whose peak of memory is taken, whatever the allocator is."""

import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
# The seconds between two looks at what the driver has free.
PERIOD = 0.002


def small_operations() -> float:
    """Return the microseconds that a step of training takes that is of many small operations: the median."""
    import torch

    torch.manual_seed(0)
    layers = [layer for _ in range(24) for layer in (torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), foreach=False)
    data = torch.randn(32, 64, device="cuda")

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss = (model(data) ** 2).mean()
        loss.backward()
        optimiser.step()

    for _ in range(50):
        step()
    rounds = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(20):
            step()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter_ns() - start) / 20 / 1000)
    return round(statistics.median(rounds), 1)


def transformer() -> None:
    """Train on sentences of varying length, as the example does."""
    sys.path.insert(0, str(EXAMPLES))
    from torch_training import train

    train(150)


def growing_cache() -> None:
    """Generate words with a cache of keys and values that grows with each, for batches of varying size."""
    import torch

    layers, heads, width = 24, 16, 64
    for batch in (4, 8, 3, 6):
        caches = [torch.zeros(2, batch, heads, 16, width, device="cuda", dtype=torch.float16) for _ in range(layers)]
        for _ in range(384):
            for index in range(layers):
                new = torch.randn(2, batch, heads, 1, width, device="cuda", dtype=torch.float16)
                caches[index] = torch.cat([caches[index], new], dim=3)
                keys, values = caches[index]
                weights = (new[0] @ keys.transpose(-1, -2)).softmax(-1)
                (weights @ values).sum()
        torch.cuda.synchronize()


def resnet() -> None:
    """Train a ResNet-50 on pictures of varying size."""
    import torch
    from torch import nn

    def convolution(before: int, after: int, size: int, stride: int = 1) -> nn.Sequential:
        convolve = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
        return nn.Sequential(convolve, nn.BatchNorm2d(after))

    class Bottleneck(nn.Module):
        def __init__(self, before: int, width: int, stride: int) -> None:
            super().__init__()
            first, second = convolution(before, width, 1), convolution(width, width, 3, stride)
            self.way = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), convolution(width, 4 * width, 1))
            is_same = before == 4 * width and stride == 1
            self.short = nn.Identity() if is_same else convolution(before, 4 * width, 1, stride)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.way(x) + self.short(x)).relu()

    torch.manual_seed(0)
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            layers.append(Bottleneck(before, width, stride if index == 0 else 1))
            before = 4 * width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000)).cuda()
    optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    # Where cuDNN chooses by what is fastest its workspaces differ from run to run.
    torch.backends.cudnn.deterministic = True
    sizes = torch.randint(8, 15, (60,)).tolist()
    for size in sizes:
        pictures = torch.randn(32, 3, 16 * size, 16 * size, device="cuda")
        loss = nn.functional.cross_entropy(model(pictures), torch.randint(1000, (32,), device="cuda"))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    torch.cuda.synchronize()


def gaussian_processes() -> None:
    """Fit Gaussian processes to sets of 1,000 to 6,000 points, each by ten steps on its kernel's two parameters."""
    import torch

    torch.manual_seed(0)
    for points in torch.randint(1000, 6000, (24,)).tolist():
        places = torch.rand(points, 8, device="cuda", dtype=torch.float64)
        values = places.sum(1).sin() + 0.1 * torch.randn(points, device="cuda", dtype=torch.float64)
        parameters = torch.zeros(2, device="cuda", dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.Adam([parameters], 0.05)
        for _ in range(10):
            length, noise = parameters.exp()
            distances = (places[:, None, :2] - places[None, :, :2]).square().sum(-1)
            kernel = (-distances / length).exp() + noise * torch.eye(points, device="cuda", dtype=torch.float64)
            root = torch.linalg.cholesky(kernel)
            fit = torch.cholesky_solve(values[:, None], root)[:, 0]
            loss = 0.5 * values @ fit + root.diagonal().log().sum()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
    torch.cuda.synchronize()


def peak(run: Callable[[], None], before: int) -> float:
    """Return the most MiB that the driver had given while it ran, of the bytes that were free before."""
    import torch

    is_over, least = threading.Event(), []

    def look() -> None:
        lowest = before
        while not is_over.is_set():
            lowest = min(lowest, torch.cuda.mem_get_info(0)[0])
            is_over.wait(PERIOD)
        least.append(min(lowest, torch.cuda.mem_get_info(0)[0]))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        run()
    finally:
        is_over.set()
        looking.join()
    return round((before - least[0]) / (1 << 20), 1)


PEAKS = {
    "transformer": transformer,
    "growing cache": growing_cache,
    "ResNet-50": resnet,
    "Gaussian processes": gaussian_processes,
}
