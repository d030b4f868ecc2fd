"""Captures of PyTorch on its own memory, unknown to gpupool: it spoils none, and nothing fails beside them."""

import sys

import cupy
import torch
from beside import wrong_steps

KINDS = {
    "non_blocking": torch.cuda.Stream,
    # PyTorch makes no blocking ones itself.
    "blocking": lambda: torch.cuda.ExternalStream(cupy_stream.ptr),
}
cupy_stream = cupy.cuda.Stream(non_blocking=False)


def main(way, mode, kind):
    x, y = torch.arange(1000.0, device="cuda"), torch.zeros(1000, device="cuda")
    stream = KINDS[kind]()
    # Loads the kernel, which no capture survives, and makes what PyTorch keeps for the stream.
    with torch.cuda.stream(stream):
        torch.add(x, 1, out=y)
    torch.cuda.synchronize()

    def capture():
        y.zero_()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        if way == "context":
            context = torch.cuda.graph(graph, stream=stream, capture_error_mode=mode)
            context.__enter__()
        else:
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode=mode)
        with torch.cuda.stream(stream):
            torch.add(x, 1, out=y)

        def end():
            if way == "context":
                context.__exit__(None, None, None)
            else:
                with torch.cuda.stream(stream):
                    graph.capture_end()
            graph.replay()
            torch.cuda.synchronize()
            assert bool((y == x + 1).all()), "replayed work is wrong"

        return end

    wrong = wrong_steps(capture, kind)
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    main(*sys.argv[1:])
