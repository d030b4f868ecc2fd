"""Sparse matrix times vector with cuSPARSE, by 16 threads at once.

Each thread has a stream of its own and takes its handle from gpupool. Threads come and go in waves, but handles stay:
the first wave creates them and the later ones get them. Results are checked against SciPy.

Run it with: python examples/spmv_cusparse.py
It needs CuPy and SciPy.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import cupy
import gpupool
import numpy as np
import scipy.sparse
from cupy.cuda.runtime import CUDA_R_64F
from cupy_backends.cuda.libs import cusparse


class Result(NamedTuple):
    """The result that one thread reports."""

    handle: int
    error: float


class Poisson:
    """The 5-point Laplacian on a square grid: a SciPy matrix on the CPU, and its three CSR arrays on the GPU."""

    def __init__(self, side):
        line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
        self.on_cpu = scipy.sparse.kronsum(line, line, format="csr")
        self.unknowns = side * side
        self.offsets = cupy.asarray(self.on_cpu.indptr, dtype=np.int32)
        self.columns = cupy.asarray(self.on_cpu.indices, dtype=np.int32)
        self.values = cupy.asarray(self.on_cpu.data)
        # Streams of other threads are going to read the arrays, so the copies must be done.
        cupy.cuda.get_current_stream().synchronize()


def multiply(matrix, start, products):
    """Compute x = A x / 8 that many times on a new stream, and return the handle that was used and x."""
    # CuPy's bindings put CuPy's current stream into the handle at every call, so `with` makes ours the current one.
    with cupy.cuda.Stream(non_blocking=True) as stream, ExitStack() as cleanup:
        handle = gpupool.cusparse.handle(stream)
        x = cupy.asarray(start)
        y = cupy.empty_like(x)

        a = cusparse.createCsr(
            matrix.unknowns,
            matrix.unknowns,
            matrix.values.size,
            matrix.offsets.data.ptr,
            matrix.columns.data.ptr,
            matrix.values.data.ptr,
            cusparse.CUSPARSE_INDEX_32I,
            cusparse.CUSPARSE_INDEX_32I,
            cusparse.CUSPARSE_INDEX_BASE_ZERO,
            CUDA_R_64F,
        )
        cleanup.callback(cusparse.destroySpMat, a)
        vector_x = cusparse.createDnVec(x.size, x.data.ptr, CUDA_R_64F)
        cleanup.callback(cusparse.destroyDnVec, vector_x)
        vector_y = cusparse.createDnVec(y.size, y.data.ptr, CUDA_R_64F)
        cleanup.callback(cusparse.destroyDnVec, vector_y)

        # y = alpha A x + beta y, with both factors in CPU memory.
        alpha, beta = np.array(1 / 8), np.array(0.0)
        arguments = (
            handle,
            cusparse.CUSPARSE_OPERATION_NON_TRANSPOSE,
            alpha.ctypes.data,
            a,
            vector_x,
            beta.ctypes.data,
            vector_y,
            CUDA_R_64F,
            cusparse.CUSPARSE_MV_ALG_DEFAULT,
        )
        scratch = cupy.empty(cusparse.spMV_bufferSize(*arguments), np.uint8)
        for _ in range(products):
            cusparse.spMV(*arguments, scratch.data.ptr)
            x[:] = y
        stream.synchronize()
        return handle, x.get()


def check(matrix, seed, products=6):
    """Do the same products on the GPU and on the CPU, and compare."""
    start = np.random.default_rng(seed).standard_normal(matrix.unknowns)
    handle, x = multiply(matrix, start, products)
    expected = start
    for _ in range(products):
        expected = matrix.on_cpu @ expected / 8
    return Result(handle, float(abs(x - expected).max() / abs(expected).max()))


def wave(matrix, threads):
    """Check on that many threads at once, and return their results once the threads have ended."""
    all_started = threading.Barrier(threads, timeout=60)

    def work(seed):
        all_started.wait()
        return check(matrix, seed)

    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(work, range(threads)))


def main():
    """Run three waves of 16 threads and print what it took."""
    threads, waves = 16, 3
    matrix = Poisson(1000)
    results = [result for _ in range(waves) for result in wave(matrix, threads)]
    stats = gpupool.cusparse.stats()
    print(f"unknowns         {matrix.unknowns}")
    print(f"threads served   {len(results)}, {threads} at a time")
    print(f"handles created  {stats.created} in {stats.create_seconds * 1e3:.1f} ms")
    print(f"handed over      {stats.hand_overs} times")
    print(f"largest error    {max(result.error for result in results):.1e}")


if __name__ == "__main__":
    main()
