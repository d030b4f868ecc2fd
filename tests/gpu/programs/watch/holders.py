"""What each library of a process holds, beside what NVML counts for the process."""

import ctypes
from pathlib import Path

import gpupool
import gpupool.torch
import torch
from torch import distributed

MIB = 1 << 20

gpupool.torch.enable()
distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
numbers = torch.ones(512, 512, device="cuda")
distributed.all_reduce(numbers)
product = numbers @ numbers
torch.nn.functional.conv2d(torch.ones(8, 16, 64, 64, device="cuda"), torch.ones(16, 16, 3, 3, device="cuda"))
torch.cuda.synchronize()

# A library without a name, which takes memory by CUDA's runtime.
mapped = Path("/proc/self/maps").read_text().splitlines()
runtime = ctypes.CDLL(next(line.split()[-1] for line in mapped if "libcudart.so" in line))
own = ctypes.c_void_p()
assert runtime.cudaMalloc(ctypes.byref(own), ctypes.c_size_t(300 * MIB)) == 0, "cudaMalloc failed"

(device,) = gpupool.memory_summary().devices
print(device)
known = device.reserved_bytes + device.handle_bytes + device.workspace_bytes
held = {holder.name: holder.nbytes for holder in device.holders}
print({name: round(nbytes / MIB, 1) for name, nbytes in held.items()})
assert device.context_bytes is not None, "NVML does not say what the process has"
parts = {"gpupool": known, "others": sum(held.values()), "contexts and code": device.context_bytes}
print({name: round(nbytes / MIB, 1) for name, nbytes in parts.items()})
assert any(nbytes == 300 * MIB for nbytes in held.values()), "what the runtime gave is not counted as it was asked for"
assert held.get("NCCL", 0) > 0, "NCCL holds nothing"
assert 100 * MIB < device.context_bytes < 3000 * MIB, "contexts and code are not what is left over"
distributed.destroy_process_group()
