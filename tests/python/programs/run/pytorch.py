"""PyTorch is enabled as it is imported: arguments and variables as for frameworks/torch_enabled.py."""

import os
import sys

import _gpupool_enable as hook
from double import MIB, calls, live
from forking import exit_code_of
from pytorch_in_place import IN_PLACE, call


def use():
    # PyTorch starts its CUDA as a program first uses it.
    call("set_up", IN_PLACE)
    block = call("allocate", IN_PLACE, 4 * MIB)["block"]
    assert live() == 1, "PyTorch's memory is its own"
    call("drop", block)
    assert live() == 0


def before_a_fork():
    hook.install(["torch"])
    import torch

    assert torch.__version__
    assert hook.failed == set()
    from gpupool._torch import place

    assert place.is_taken()
    assert calls("cuInit") == calls("cuDevicePrimaryCtxRetain") == 0, "enabling it has started the driver"
    child = os.fork()
    if child == 0:
        use()
        os._exit(0)
    assert exit_code_of(child) == 0, "a child that was forked before the first use failed"
    use()


if __name__ == "__main__":
    globals()[sys.argv[3]]()
