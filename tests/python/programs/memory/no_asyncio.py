"""A scope in a program without asyncio does not load it."""

import sys

import gpupool

pool = gpupool.MemPool()
with gpupool.use_mem_pool(pool), pool:
    assert gpupool.empty(1).pool_id == pool.id
assert "asyncio" not in sys.modules, "a scope loaded asyncio"
assert "contextvars" not in sys.modules, "a scope loaded contextvars"
