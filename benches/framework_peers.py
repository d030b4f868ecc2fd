"""Frameworks over gpupool and over their own memory, in one run on one machine, as one JSON object a line.

    python benches/framework_peers.py [PEER...]

Each peer is asked as its users ask it, from Python: for 1 KiB that is freed at once, and for the random mix of
benches/figures.py, on the current stream, by one thread and by sixteen. Times are nanoseconds. A peer that is not
installed is left out; one that fails says why.
"""

import contextlib
import gc
import sys
from collections.abc import Iterator

from figures import Allocate, Free, Peer, forget, measured, nanoseconds, tell, tell_mix

GIB = 1 << 30


@contextlib.contextmanager
def gpupool_empty() -> Iterator[tuple[Allocate, Free]]:
    """Allocate from gpupool itself."""
    import gpupool

    yield gpupool.empty, forget
    gpupool.empty_cache()


@contextlib.contextmanager
def cupy_own() -> Iterator[tuple[Allocate, Free]]:
    """Allocate with CuPy from its own pool."""
    import cupy

    yield cupy.cuda.alloc, forget
    cupy.get_default_memory_pool().free_all_blocks()


@contextlib.contextmanager
def cupy_gpupool() -> Iterator[tuple[Allocate, Free]]:
    """Allocate with CuPy from gpupool."""
    import cupy
    import gpupool

    gpupool.cupy.enable()
    try:
        yield cupy.cuda.alloc, forget
    finally:
        gpupool.cupy.disable()
        gpupool.empty_cache()


def rmm_resource(kind: str) -> object:
    """Return one of RMM's resources, with memory to start with."""
    import rmm

    if kind == "pool":
        return rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=4 * GIB)
    if kind == "arena":
        return rmm.mr.ArenaMemoryResource(rmm.mr.CudaMemoryResource(), arena_size=16 * GIB)
    if kind == "gpupool":
        import gpupool

        return gpupool.rmm.resource()
    return rmm.mr.CudaAsyncMemoryResource()


def cupy_rmm(kind: str) -> Peer:
    """Return the peer that allocates with CuPy from RMM."""

    @contextlib.contextmanager
    def peer() -> Iterator[tuple[Allocate, Free]]:
        import cupy
        import rmm
        from rmm.allocators.cupy import rmm_cupy_allocator

        former = rmm.mr.get_current_device_resource()
        rmm.mr.set_current_device_resource(rmm_resource(kind))
        own = cupy.cuda.get_allocator()
        cupy.cuda.set_allocator(rmm_cupy_allocator)
        try:
            yield cupy.cuda.alloc, forget
        finally:
            cupy.cuda.set_allocator(own)
            rmm.mr.set_current_device_resource(former)

    return peer


def rmm_alone(kind: str) -> Peer:
    """Return the peer that allocates RMM's buffers."""

    @contextlib.contextmanager
    def peer() -> Iterator[tuple[Allocate, Free]]:
        import rmm

        resource = rmm_resource(kind)
        yield lambda nbytes: rmm.DeviceBuffer(size=nbytes, mr=resource), forget

    return peer


PEERS: dict[str, Peer] = {
    "gpupool.empty": gpupool_empty,
    "cupy": cupy_own,
    "cupy over gpupool": cupy_gpupool,
    **{f"cupy over rmm {kind}": cupy_rmm(kind) for kind in ("pool", "arena", "async")},
    **{f"rmm {kind}": rmm_alone(kind) for kind in ("pool", "arena", "async", "gpupool")},
}


def pair(allocate: Allocate, free: Free) -> float:
    """Return the nanoseconds for 1 KiB that is freed at once."""
    if free is forget:
        return nanoseconds("allocate(1024)", allocate=allocate)
    return nanoseconds("free(allocate(1024))", allocate=allocate, free=free)


def measure(name: str) -> None:
    """Print what a peer takes."""
    with measured(name), PEERS[name]() as calls:
        tell(peer=name, work="pair", threads=1, ns_per_pair=pair(*calls))
        tell_mix(name, lambda: contextlib.nullcontext(calls))


def main() -> None:
    """Measure the peers that are named, or all."""
    for name in sys.argv[1:] or PEERS:
        measure(name)


if __name__ == "__main__":
    # A collection takes longer than a thousand steps, and falls on the peer that is at work.
    gc.disable()
    main()
