"""Every library that is here, and a handle of each."""

import gpupool

POOLS = [
    *(gpupool.cudnn, gpupool.cusparse, gpupool.cudss, gpupool.cublas, gpupool.cublaslt, gpupool.cusolver),
    *(gpupool.custatevec, gpupool.cutensornet, gpupool.cutensor, gpupool.cusparselt),
]
pools = [pool for pool in POOLS if pool.available]
assert pools, "no library is here"


def take():
    """Take a handle of each for the calling thread."""
    for pool in pools:
        assert pool.handle() != 0, f"no handle of {pool.name}"
