"""A process ends cleanly with PyTorch's tensors alive, after these steps: packages to import, things to do."""

import importlib
import sys
import threading

from waiting import wait_for

# What lives until the interpreter lets it go.
alive = []


def whole():
    """Have gpupool as the allocator of the whole process, with a graph."""
    importlib.import_module("gpupool.torch").enable()
    torch = importlib.import_module("torch")
    alive.append(torch.ones(1 << 20, device="cuda"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        alive.append(alive[0].clone())
    graph.replay()
    alive.append(graph)


def pool():
    """Have gpupool's pools beside PyTorch's own memory."""
    gpupool = importlib.import_module("gpupool")
    torch = importlib.import_module("torch")
    own = gpupool.MemPool()
    with gpupool.torch.using(own):
        alive.append(torch.ones(1 << 20, device="cuda"))
    made = gpupool.torch.mem_pool(own)
    with torch.cuda.use_mem_pool(made):
        alive.append(torch.ones(1 << 20, device="cuda"))
    gpupool.torch.enable(allocator=False)
    alive.extend([made, own, gpupool.empty(1 << 20)])


def thread():
    """Have a thread that never ends keep a tensor."""
    torch = importlib.import_module("torch")
    ready = threading.Event()

    def work():
        kept = [torch.ones(1 << 20, device="cuda")]
        ready.set()
        threading.Event().wait()
        del kept

    threading.Thread(target=work, daemon=True).start()
    wait_for(ready, "the thread has its tensor")


STEPS = {"whole": whole, "pool": pool, "thread": thread}


def main(steps):
    for step in steps.split("-"):
        if step in STEPS:
            STEPS[step]()
        else:
            importlib.import_module(step)
    assert alive, "no step left anything alive"


if __name__ == "__main__":
    main(*sys.argv[1:])
