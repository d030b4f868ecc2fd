"""A package that is missing or too old is named where gpupool needs it, with what brings it."""

import sys

import gpupool
from errors import assert_says, raised

# What needs it.
NEEDS = {
    "cuda.core": [lambda: gpupool.cuda_core.enable(), lambda: gpupool.cuda_core.MemoryResource()],
    "cupy": [lambda: gpupool.cupy.enable()],
    "distributed": [lambda: gpupool.dask.Plugin],
    "numba_cuda": [lambda: gpupool.numba.enable()],
    "nvmath": [lambda: gpupool.nvmath.options(gpupool.cudss).__enter__()],
    "prometheus_client": [lambda: gpupool.prometheus.text(), lambda: gpupool.prometheus.Collector()],
    "ray": [lambda: gpupool.ray.stats([])],
    "rmm": [lambda: gpupool.rmm.resource()],
    "warp": [lambda: gpupool.warp.enable(), lambda: gpupool.warp.using().__enter__()],
}


def main(package, *said):
    for call in NEEDS[package]:
        assert_says(raised(gpupool.LibraryNotFound, call), *said)


if __name__ == "__main__":
    main(*sys.argv[1:])
