"""A matrix product with cuBLAS and a Cholesky factorisation with cuSOLVER, by four threads at once.

Each thread forms S = A A^T + n I with cuBLAS and factorises it as L L^T with cuSOLVER, both on a stream of its own. The
handles are gpupool's, the functions are CuPy's bindings of the two libraries. Results are checked against NumPy.

Run it with: python examples/gemm_cholesky.py
It needs CuPy.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import cupy
import gpupool
import numpy as np
from cupy_backends.cuda.libs import cublas, cusolver


class Result(NamedTuple):
    """The result of one thread: its two handles, and how far the product and the factor are from NumPy's."""

    cublas_handle: int
    cusolver_handle: int
    product_error: float
    factor_error: float


def factorise(a):
    """Form S and factorise it on a new stream, and return the two handles that were used, S and L."""
    n = len(a)
    # CuPy's bindings put CuPy's current stream into the handle at every call, so `with` makes ours the current one.
    with cupy.cuda.Stream(non_blocking=True) as stream:
        cublas_handle = gpupool.cublas.handle(stream)
        cusolver_handle = gpupool.cusolver.handle(stream)

        # Both libraries expect columns first.
        a = cupy.asarray(a, order="F")
        s = cupy.asarray(n * np.eye(n), order="F")
        one = np.array(1.0)
        cublas.dgemm(
            cublas_handle,
            cublas.CUBLAS_OP_N,
            cublas.CUBLAS_OP_T,
            n,
            n,
            n,
            one.ctypes.data,
            a.data.ptr,
            n,
            a.data.ptr,
            n,
            one.ctypes.data,
            s.data.ptr,
            n,
        )

        # The factor replaces the lower triangle of what it is given.
        factor = s.copy(order="F")
        lower = cublas.CUBLAS_FILL_MODE_LOWER
        size = cusolver.dpotrf_bufferSize(cusolver_handle, lower, n, factor.data.ptr, n)
        scratch = cupy.empty(size, np.float64)
        info = cupy.empty(1, np.int32)
        cusolver.dpotrf(cusolver_handle, lower, n, factor.data.ptr, n, scratch.data.ptr, size, info.data.ptr)
        stream.synchronize()
        if info.get()[0] != 0:
            raise RuntimeError(f"dpotrf: info {info.get()[0]}")
        return cublas_handle, cusolver_handle, s.get(), np.tril(factor.get())


def check(seed, n=512):
    """Do the same on the GPU and on the CPU, and compare."""
    a = np.random.default_rng(seed).standard_normal((n, n))
    cublas_handle, cusolver_handle, s, factor = factorise(a)
    expected_s = a @ a.T + n * np.eye(n)
    expected_factor = np.linalg.cholesky(expected_s)
    return Result(
        cublas_handle,
        cusolver_handle,
        float(abs(s - expected_s).max() / abs(expected_s).max()),
        float(abs(factor - expected_factor).max() / abs(expected_factor).max()),
    )


def wave(threads):
    """Check on that many threads at once, and return their results once the threads have ended."""
    all_started = threading.Barrier(threads, timeout=60)

    def work(seed):
        all_started.wait()
        return check(seed)

    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(work, range(threads)))


def main():
    """Run three waves of four threads and print what it took."""
    threads, waves = 4, 3
    results = [result for _ in range(waves) for result in wave(threads)]
    print(f"threads served   {len(results)}, {threads} at a time")
    for pool in (gpupool.cublas, gpupool.cusolver):
        stats = pool.stats()
        print(f"{pool.name:<16} {stats.created} handles created, handed over {stats.hand_overs} times")
    print(f"product error    {max(result.product_error for result in results):.1e}")
    print(f"factor error     {max(result.factor_error for result in results):.1e}")


if __name__ == "__main__":
    main()
