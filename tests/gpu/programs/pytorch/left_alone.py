"""PyTorch was told to use CUDA's own pool, by PYTORCH_CUDA_ALLOC_CONF: gpupool says so, and PyTorch goes on with it."""

import gpupool
import torch
from errors import assert_says, raised

assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
assert_says(raised(gpupool.Error, gpupool.torch.enable), "backend:cudaMallocAsync")
assert float(torch.ones(10, device="cuda").sum()) == 10
