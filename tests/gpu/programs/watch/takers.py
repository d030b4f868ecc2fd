"""Others take memory of a device that a framework's cache has all of: they get it, or the program fails as it would.

The first argument is where PyTorch's memory comes from, `gpupool` or `pytorch`; the second is who takes some, and the
third how many GiB the cache has not. RANK, WORLD_SIZE and MEETING, a file's path, are for NCCL of several processes.
"""

import ctypes
import os
import sys

import torch

driver = ctypes.CDLL("libcuda.so.1")
GIB = 1 << 30


def fill(spare):
    """Leave so many bytes to the driver, and the others free in PyTorch's cache."""
    blocks, size = [], 8 * GIB
    while size >= 2 << 20:
        try:
            if torch.cuda.mem_get_info()[0] < spare + size:
                size //= 2
            else:
                blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    torch.cuda.synchronize()


def nccl():
    """A communicator, and a sum."""
    from torch import distributed

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    store = distributed.FileStore(os.environ["MEETING"], ranks) if ranks > 1 else distributed.HashStore()
    distributed.init_process_group("nccl", store=store, rank=torch.cuda.current_device(), world_size=ranks)

    def take():
        numbers = torch.ones(1 << 20, device="cuda")
        distributed.all_reduce(numbers)
        torch.cuda.synchronize()
        assert numbers.sum().item() == ranks << 20, "the sum is wrong"

    return take


def jax():
    """A gibibyte of JAX's own."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

    def take():
        import jax

        assert jax.devices()[0].platform == "gpu", "JAX does not see the GPU"
        numbers = jax.numpy.ones(GIB // 4, dtype="float32")
        assert numbers.sum() == GIB // 4, "the sum is wrong"

    return take


def of_the_driver():
    """Seven tenths of the device in one physical allocation, as a server's cache of keys and values may take."""

    def take():
        properties = (ctypes.c_int * 16)(1, 0, 1, 0)  # Pinned, not exported, on device 0.
        handle = ctypes.c_uint64()
        total = torch.cuda.get_device_properties(0).total_memory
        nbytes = int(total * 0.7) // (2 << 20) * (2 << 20)
        status = driver.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(nbytes), properties, ctypes.c_uint64(0))
        assert status == 0, f"cuMemCreate answered {status}"
        assert driver.cuMemRelease(handle) == 0, "the memory could not be released"

    return take


def cublas():
    """The first handle, and a product."""
    left, right = torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda")

    def take():
        assert (left @ right).sum().item() == 64**3, "the product is wrong"

    return take


def main():
    """Fill the device, have somebody take memory, and say that it was there."""
    memory, name, *spare = sys.argv[1:]
    if memory == "gpupool":
        import gpupool.torch

        gpupool.torch.enable()
    torch.cuda.set_device(int(os.environ.get("RANK", "0")))
    # Code that is loaded at its first use needs memory too, which is not what is tried here.
    assert torch.ones(1 << 20, device="cuda").sum().item() == 1 << 20, "the sum is wrong"
    take = {"nccl": nccl, "jax": jax, "of_the_driver": of_the_driver, "cublas": cublas}[name]()
    fill(sum(map(int, spare)) * GIB)
    free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    print(f"free {free >> 20} MiB, cached {reserved >> 20} MiB")
    assert torch.cuda.memory_allocated() < GIB, "what was filled is not free"
    take()
    print(f"{name} got its memory; cached {torch.cuda.memory_reserved() >> 20} MiB")


if __name__ == "__main__":
    main()
