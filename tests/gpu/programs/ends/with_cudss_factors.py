"""A process ends cleanly with factors of cuDSS's in a MemPool, whichever of the two packages it imported first."""

import importlib
import sys

# What lives until the interpreter lets it go.
alive = []


def main(order):
    packages = {name: importlib.import_module(name) for name in order.split(",")}
    cupy, gpupool = packages["cupy"], packages["gpupool"]
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


if __name__ == "__main__":
    main(*sys.argv[1:])
