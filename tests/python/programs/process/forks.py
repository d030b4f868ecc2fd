"""A forked child of a process that used gpupool is refused clearly, and its parent goes on."""

import os
import sys

import gpupool
from forking import assert_refused, exit_code_of


def handles():
    handle, stream = gpupool.simulated.handle(), gpupool.Stream()
    child = os.fork()
    if child == 0:
        assert_refused(
            gpupool.simulated.handle,
            lambda: gpupool.simulated.handle(64),
            lambda: gpupool.simulated.warm(1),
            gpupool.simulated.trim,
            gpupool.device_count,
            gpupool.Stream,
            stream.query,
            lambda: gpupool.stream(stream).__enter__(),
        )
        os._exit(0)
    assert exit_code_of(child) == 0, "the child failed"
    assert gpupool.simulated.handle() == handle, "the parent's handle changed"


def before_the_first_use():
    child = os.fork()
    if child == 0:
        os._exit(0 if gpupool.simulated.handle() else 2)
    assert exit_code_of(child) == 0, "the child got no handle"
    assert gpupool.simulated.handle() != 0, "the parent got no handle"


def memory():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    buffer = gpupool.empty(1 << 20, stream)
    child = os.fork()
    if child == 0:
        assert_refused(
            pool.stats,
            pool.snapshot,
            pool.trim,
            gpupool.memory_stats,
            gpupool.memory_snapshot,
            gpupool.empty_cache,
            lambda: gpupool.use_mem_pool(pool).__enter__(),
            lambda: pool.capture(stream).__enter__(),
            lambda: gpupool.empty(1, stream),
            lambda: buffer.record_stream(stream),
            buffer.free,
            gpupool.MemPool,
            lambda: gpupool.torch.begin_allocate_to_pool(0, (0, 99)),
        )
        del buffer, pool
        os._exit(0)
    assert exit_code_of(child) == 0, "the child failed"
    assert buffer.nbytes == 1 << 20, "the parent's buffer changed"
    buffer.free()


def leases():
    stream = gpupool.Stream()
    lease = gpupool.simulated.lease(stream)
    child = os.fork()
    if child == 0:
        assert_refused(
            gpupool.simulated.lease,
            lambda: gpupool.simulated.lease(stream),
            gpupool.simulated.stats,
            gpupool.handle_stats,
            lambda: setattr(gpupool.simulated, "limit", 3),
            lease.release,
        )
        del lease
        os._exit(0)
    assert exit_code_of(child) == 0, "the child failed"
    assert gpupool.simulated.stats().leased == 1, "the child released the parent's lease"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
