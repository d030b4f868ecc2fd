"""Tensors in gpupool's memory, sent to a process that imports torch alone and has an allocator of its own."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

COUNT = 1 << 20
LONG = 120

# What no line of names gpupool: it runs in a Python of its own, and takes what it is sent from a socket.
STRANGER = """
import sys
import torch
from multiprocessing.connection import Client
from multiprocessing.reduction import ForkingPickler

with Client(sys.argv[1]) as connection:
    for number in range(3):
        tensors = ForkingPickler.loads(connection.recv_bytes())
        view, parameter, whole = tensors
        assert view.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        assert isinstance(parameter, torch.nn.Parameter) and parameter.requires_grad and not whole.requires_grad
        assert bool((whole == torch.arange(number, number + len(whole), device="cuda")).all())
        view.add_(100)
        own = torch.ones(1 << 20, device="cuda") * 2
        torch.cuda.synchronize()
        connection.send((float(own.sum()), float(parameter.detach().sum())))
        del tensors, view, parameter, whole
"""


def main(conf):
    # The stranger's alone.
    program = [sys.executable, "-c", textwrap.dedent(STRANGER)]
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "socket")
        from multiprocessing.connection import Listener
        from multiprocessing.reduction import ForkingPickler

        import gpupool
        import torch
        import torch.multiprocessing
        from waiting import wait_until

        gpupool.torch.enable()
        with Listener(address) as listener:
            stranger = subprocess.Popen([*program, address], env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf})
            with listener.accept() as connection:
                for number in range(3):
                    whole = torch.arange(number, number + COUNT, device="cuda")
                    parameter = torch.nn.Parameter(torch.full((1000,), 0.5, device="cuda"))
                    connection.send_bytes(ForkingPickler.dumps([whole[10:20], parameter, whole]))
                    assert connection.poll(LONG), f"no answer; the stranger ended with {stranger.poll()}"
                    assert connection.recv() == (2.0 * (1 << 20), 500.0)
                    expected = torch.arange(number, number + COUNT, device="cuda")
                    expected[10:20] += 100
                    assert torch.equal(whole, expected)
        assert stranger.wait(LONG) == 0
        del whole, parameter, expected

        def is_back():
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()
            return gpupool.memory_stats(0).live_bytes == 0

        wait_until(is_back, "the memory came back")


if __name__ == "__main__":
    main(sys.argv[1])
