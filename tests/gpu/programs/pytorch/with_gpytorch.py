"""GPyTorch on gpupool's memory: an exact Gaussian process, and one that checkpoints its kernel."""

import gpupool
import gpytorch
import torch


class Process(gpytorch.models.ExactGP):
    """A process with a constant mean."""

    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def main():
    torch.manual_seed(0)
    torch.ones(1, device="cuda")
    gpupool.torch.enable()
    x = torch.linspace(0, 1, 2000, device="cuda")
    y = torch.sin(6 * x) + 0.01 * torch.randn_like(x)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
    model = Process(x, y, likelihood).cuda()
    model.train()
    likelihood.train()
    optimiser = torch.optim.Adam(model.parameters(), 0.1)
    log_likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    for _ in range(30):
        optimiser.zero_grad()
        loss = -log_likelihood(model(x), y)
        loss.backward()
        optimiser.step()
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        error = float((likelihood(model(x[::10] + 1e-4)).mean - torch.sin(6 * x[::10])).abs().max())
    assert error < 0.2, f"the process is {error} off"
    assert torch.cuda.max_memory_allocated() >= 2000 * 2000 * 4, "the kernel's matrix is not counted"
    print(f"torch: GPyTorch: peak {torch.cuda.max_memory_allocated()} bytes, {error:.4f} off")


if __name__ == "__main__":
    main()
