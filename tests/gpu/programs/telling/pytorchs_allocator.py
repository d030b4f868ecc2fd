"""`gpupool.info()` says whose memory PyTorch has, before and after gpupool is enabled, and once it is used."""

import gpupool
import torch


def assert_told(uses_gpupool, allocator):
    (found,) = [each for each in gpupool.info().frameworks if each.name == "torch"]
    told = found.uses_gpupool, found.allocator
    assert told == (uses_gpupool, allocator), f"of PyTorch is told {told}"


def main():
    assert_told(False, "PyTorch's own (native)")
    gpupool.torch.enable()
    assert_told(True, "gpupool")
    torch.zeros(10, device="cuda")
    assert_told(True, "gpupool")
    gpupool.torch.disable()
    assert_told(False, "PyTorch's own (native)")


if __name__ == "__main__":
    main()
