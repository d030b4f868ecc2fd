"""A scope in a program without asyncio does not load it, whether it may, and is left where the program ends in it."""

import os
import sys

import gpupool

pool = gpupool.MemPool()
with gpupool.use_mem_pool(pool), pool:
    assert gpupool.empty(1).pool_id == pool.id
assert "asyncio" not in sys.modules, "a scope loaded asyncio"
assert "contextvars" not in sys.modules, "a scope loaded contextvars"

# How a program says that nothing may import it.
sys.modules["asyncio"] = None
with pool:
    assert gpupool.empty(1).pool_id == pool.id
del sys.modules["asyncio"]


def in_the_pool(pool, write, output):
    """Leave the pool, as the last thing of the program, when no module can be imported any more."""
    try:
        with pool:
            try:
                yield
            finally:
                inside = pool.use_count()
    finally:
        write(output, b"%d was left" % (inside - pool.use_count()))


generator = in_the_pool(pool, os.write, sys.stdout.fileno())
next(generator)
