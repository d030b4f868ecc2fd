"""Products on several streams with one cuBLAS handle, each stream with a workspace and all with one.

The product is one that cuBLAS splits over its workspace. With the library's own, one for all streams of a handle, the
products wait for each other. The script prints one JSON object a line; it needs a GPU and CuPy.
"""

import argparse
import ctypes
import json
import statistics
import time

import cupy
import gpupool

# The rows and columns, and the terms of each sum.
SHAPES = [(64, 200_000), (128, 32_768), (256, 8_192)]
STREAMS = 8
PRODUCTS = 2000
ROUNDS = 5


class Products:
    """Products of one shape, each stream with its own result."""

    def __init__(self, size: int, terms: int, streams: list[gpupool.Stream]) -> None:
        random = cupy.random.default_rng(1)
        self.size, self.terms, self.streams = size, terms, streams
        self.left = random.standard_normal((terms, size), dtype=cupy.float32)
        self.right = random.standard_normal((size, terms), dtype=cupy.float32)
        self.results = [cupy.empty((size, size), dtype=cupy.float32) for _ in streams]
        self.library = ctypes.CDLL(gpupool.cublas.path)
        self.own = ctypes.c_void_p()
        assert self.library.cublasCreate_v2(ctypes.byref(self.own)) == 0

    def pooled(self, stream: gpupool.Stream) -> ctypes.c_void_p:
        """Return gpupool's handle, which has the stream's workspace."""
        return ctypes.c_void_p(gpupool.cublas.handle(stream))

    def plain(self, stream: gpupool.Stream) -> ctypes.c_void_p:
        """Return a handle with the library's own workspace."""
        assert self.library.cublasSetStream_v2(self.own, ctypes.c_void_p(stream.ptr)) == 0
        return self.own

    def microseconds(self, handle_for) -> float:
        """Return the time of one product, from the first call until the GPU is done."""
        one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
        left, right = ctypes.c_void_p(self.left.data.ptr), ctypes.c_void_p(self.right.data.ptr)
        results = [ctypes.c_void_p(result.data.ptr) for result in self.results]
        n, k, gemm = self.size, self.terms, self.library.cublasSgemm_v2
        cupy.cuda.runtime.deviceSynchronize()
        start = time.perf_counter()
        for turn in range(PRODUCTS):
            which = turn % len(self.streams)
            handle = handle_for(self.streams[which])
            gemm(handle, 0, 0, n, n, k, one, left, n, right, k, zero, results[which], n)
        cupy.cuda.runtime.deviceSynchronize()
        return (time.perf_counter() - start) / PRODUCTS * 1e6


def main() -> None:
    """Measure every shape, both ways in turn, and print medians."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    every = [gpupool.Stream() for _ in range(STREAMS)]
    for size, terms in SHAPES:
        for streams in (every[:1], every):
            products = Products(size, terms, streams)
            ways = {"gpupool": products.pooled, "cublas": products.plain}
            times = {name: [] for name in ways}
            for _ in range(ROUNDS):
                for name, handle_for in ways.items():
                    times[name].append(products.microseconds(handle_for))
            # The first round loads and warms up.
            medians = {name: round(statistics.median(found[1:]), 2) for name, found in times.items()}
            shape = [size, size, terms]
            print(json.dumps({"work": "sgemm", "shape": shape, "streams": len(streams), "us": medians}))


if __name__ == "__main__":
    main()
