"""A process ends cleanly with what frameworks have of gpupool's, after steps: packages to import, things to do."""

import importlib
import logging
import sys
import threading

from waiting import wait_for

# What lives until the interpreter lets it go.
alive = []


def in_a_thread_that_never_ends(work):
    """Have a thread keep what work returns."""
    has_its_own = threading.Event()

    def run():
        kept = [work()]
        has_its_own.set()
        threading.Event().wait()
        del kept

    threading.Thread(target=run, daemon=True).start()
    wait_for(has_its_own, "the thread has its own")


def cupy_arrays():
    import cupy
    import gpupool

    gpupool.cupy.enable(handles=True)
    pool = gpupool.MemPool()
    scope = gpupool.cupy.using(pool)
    scope.__enter__()
    inside = cupy.arange(1000)
    cycle = [inside + 1]
    cycle.append(cycle)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        product = cupy.eye(64) @ cupy.eye(64)
    alive.extend([pool, scope, inside, cycle, stream, product])

    def work():
        own = [cupy.arange(1000) + 1]
        with cupy.cuda.Stream(non_blocking=True):
            own.append(cupy.eye(8) @ cupy.eye(8))
        return own

    for _ in range(4):
        in_a_thread_that_never_ends(work)


def cuda_core_buffers():
    import gpupool
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    gpupool.cuda_core.enable()
    stream = device.create_stream()
    alive.extend(device.allocate(100000, stream=stream) for _ in range(30))
    alive.append(gpupool.cuda_core.to_buffer(gpupool.empty(1000)))
    for buffer in alive[:5]:
        buffer.fill(1, stream=stream)
    in_a_thread_that_never_ends(lambda: alive.append(device.memory_resource.allocate(1000, stream=stream)))
    alive.extend([device, stream])


def numba_arrays():
    """Numba's beside PyTorch's."""
    import gpupool
    import numpy
    import torch

    gpupool.numba.enable()
    cuda = importlib.import_module("numba.cuda")
    alive.extend(cuda.to_device(numpy.arange(100000)) for _ in range(30))
    alive.append(alive[0][10:20])
    alive.append(torch.eye(64, device="cuda"))
    in_a_thread_that_never_ends(lambda: alive.append(cuda.device_array(1000)))
    del alive[3:20]


def warp_arrays():
    """Warp's arrays and graphs."""
    import gpupool
    import warp as wp

    wp.config.quiet = True
    gpupool.warp.enable()
    with wp.ScopedDevice("cuda:0"):
        alive.extend(wp.zeros(100_000, dtype=float) for _ in range(30))
        with wp.ScopedCapture() as capture:
            alive.append(wp.clone(alive[0]))
            wp.clone(alive[1])
        wp.capture_launch(capture.graph)
        with wp.ScopedStream(wp.Stream()):
            alive.append(wp.zeros(1000, dtype=float))
    alive.append(capture)
    wp.alive = [wp.zeros(10, dtype=float, device="cuda:0")]
    del alive[3:20]


def cudss_factors():
    """Factors of cuDSS's in a MemPool."""
    import cupy
    import gpupool

    example = importlib.import_module("solve_cudss")
    system_of = importlib.import_module("cudss_system").System
    mem_pool = gpupool.MemPool()
    gpupool.cudss.set_mem_pool(mem_pool)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        system = system_of(example, gpupool.cudss.handle(stream), example.Poisson(64))
        system.factorise()
        residual = system.residual()
        assert residual < 1e-10, f"the residual is {residual}"
    assert mem_pool.stats().live_bytes > 0, "the factors are not in the pool"
    alive.extend([mem_pool, stream, system])


def nvmath_solver():
    """A solver of nvmath's on a lent handle."""
    import gpupool

    solver_of = importlib.import_module("nvmath.sparse.advanced").DirectSolver
    a, b = importlib.import_module("equations").poisson(32)
    gpupool.cudss.set_mem_pool(gpupool.MemPool())
    lent = gpupool.nvmath.options(gpupool.cudss)
    solver = solver_of(a, b, options=lent.__enter__())
    solver.plan()
    solver.factorize()
    error = float(abs(a @ solver.solve() - b).max())
    assert error < 1e-10, f"the solution is {error} off"
    alive.extend([lent, a, b, solver])


def whole():
    """Have gpupool as the allocator of the whole process, with a graph."""
    importlib.import_module("gpupool.torch").enable()
    import torch

    alive.append(torch.ones(1 << 20, device="cuda"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        alive.append(alive[0].clone())
    graph.replay()
    alive.append(graph)


def pool():
    """Have gpupool's pools beside PyTorch's own memory."""
    import gpupool
    import torch

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
    import torch

    in_a_thread_that_never_ends(lambda: torch.ones(1 << 20, device="cuda"))


def multiply(framework, **where):
    """Have a framework use cuBLAS."""
    a = importlib.import_module(framework).eye(64, **where)
    assert float((a @ a).sum()) == 64, f"{framework} multiplies wrongly"


def cupys_handles():
    multiply("cupy")


def torchs_handles():
    multiply("torch", device="cuda")


def gpupools_handles():
    take = importlib.import_module("library_handles").take
    take()
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()


def quietly():
    """Let nvmath not warn on stderr of a library that would make it quicker."""
    logging.disable(logging.WARNING)


def main(*steps):
    for step in steps:
        if step in globals():
            globals()[step]()
        else:
            importlib.import_module(step)


if __name__ == "__main__":
    main(*sys.argv[1:])
