"""Libraries that cannot be told where to take their memory say so, and work on."""

import gpupool
from double import error_of


def main():
    mine = gpupool.MemPool()
    # cuDSS is there in a version that lacks the function.
    for pool in (gpupool.cudss, gpupool.cusparse):
        error = error_of(pool.set_mem_pool, mine)
        assert f"{pool.name} cannot allocate" in error, f"{pool.name} does not say that it is unable: {error}"
        pool.set_mem_pool(None)
        assert pool.handle(device=0) != 0, f"no handle of {pool.name}"
    error = error_of(gpupool.cublas.set_mem_pool, mine)
    assert "libcublas" in error, f"a library that is missing: {error}"
    own = gpupool.HandlePool("own", create=lambda: 1, destroy=lambda handle: None)
    error = error_of(own.set_mem_pool, mine)
    assert "own cannot allocate" in error, f"a pool of one's own: {error}"
