"""Factorise and solve a sparse system with cuDSS, called through ctypes, by four threads at once.

gpupool.cudss.path is the file that gpupool loaded, so ctypes gets the very same library, and gpupool's handles fit it.
Each thread solves the Poisson equation for a right-hand side of its own. Results are checked against SciPy.

Run it with: python examples/solve_cudss.py
It needs CuPy, SciPy and cuDSS (pip install nvidia-cudss-cu13).
"""

import ctypes
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ctypes import POINTER, c_int, c_int64, c_void_p
from typing import NamedTuple

import cupy
import gpupool
import numpy as np
import scipy.sparse
import scipy.sparse.linalg

# Values of cuDSS's and CUDA's enums.
CUDA_R_64F = 1
CUDA_R_32I = 10
CUDSS_PHASE_ANALYSIS = 0x003
CUDSS_PHASE_FACTORIZATION = 0x004
CUDSS_PHASE_SOLVE = 0x3F0
CUDSS_MTYPE_SPD = 3
CUDSS_MVIEW_UPPER = 2
CUDSS_BASE_ZERO = 0
CUDSS_LAYOUT_COL_MAJOR = 0


class Result(NamedTuple):
    """The result of one thread: its handle, the relative residual, and how far the solution is from SciPy's."""

    handle: int
    residual: float
    error: float


class Poisson:
    """The 5-point Laplacian on a square grid: a SciPy matrix on the CPU, and its upper triangle in CSR on the GPU."""

    def __init__(self, side):
        line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
        self.on_cpu = scipy.sparse.kronsum(line, line, format="csr")
        self.unknowns = side * side
        upper = scipy.sparse.triu(self.on_cpu, format="csr")
        upper.sort_indices()
        self.offsets = cupy.asarray(upper.indptr, dtype=np.int32)
        self.columns = cupy.asarray(upper.indices, dtype=np.int32)
        self.values = cupy.asarray(upper.data)
        # Streams of other threads are going to read the arrays, so the copies must be done.
        cupy.cuda.get_current_stream().synchronize()


@functools.cache
def load():
    """Load cuDSS and describe the functions used here, which raise if their status is not 0."""
    cudss = ctypes.CDLL(gpupool.cudss.path)

    def check_status(status, function, _arguments):
        if status != 0:
            raise RuntimeError(f"{function.__name__}: status {status}")

    handle = config = data = matrix = memory = c_void_p
    signatures = {
        "cudssConfigCreate": [POINTER(config)],
        "cudssConfigDestroy": [config],
        "cudssDataCreate": [handle, POINTER(data)],
        "cudssDataDestroy": [handle, data],
        "cudssMatrixCreateCsr": [POINTER(matrix)] + [c_int64] * 3 + [memory] * 4 + [c_int] * len(csr_types()),
        "cudssMatrixCreateDn": [POINTER(matrix)] + [c_int64] * 3 + [memory, c_int, c_int],
        "cudssMatrixDestroy": [matrix],
        "cudssExecute": [handle, c_int, config, data, matrix, matrix, matrix],
    }
    for name, types in signatures.items():
        function = getattr(cudss, name)
        function.argtypes = types
        function.errcheck = check_status
    return cudss


def csr_types():
    """Return the types of the CSR arrays. cuDSS 0.8 began to ask for the type of the row offsets too."""
    index_types = [CUDA_R_32I] if gpupool.cudss.version < (0, 8, 0) else [CUDA_R_32I, CUDA_R_32I]
    return [*index_types, CUDA_R_64F, CUDSS_MTYPE_SPD, CUDSS_MVIEW_UPPER, CUDSS_BASE_ZERO]


def solve(matrix, right_side):
    """Solve the system on a new stream, and return the handle that was used and the solution."""
    cudss = load()
    # `with` makes this CuPy's current stream too, so that CuPy's copies run on it.
    with cupy.cuda.Stream(non_blocking=True) as stream, ExitStack() as cleanup:
        handle = gpupool.cudss.handle(stream)
        b = cupy.asarray(right_side)
        x = cupy.empty_like(b)

        config, data, a_is, b_is, x_is = (c_void_p() for _ in range(5))
        cudss.cudssConfigCreate(ctypes.byref(config))
        cleanup.callback(cudss.cudssConfigDestroy, config)
        cudss.cudssDataCreate(handle, ctypes.byref(data))
        cleanup.callback(cudss.cudssDataDestroy, handle, data)
        n = matrix.unknowns
        cudss.cudssMatrixCreateCsr(
            ctypes.byref(a_is),
            n,
            n,
            matrix.values.size,
            matrix.offsets.data.ptr,
            None,  # where rows end: where the next one starts
            matrix.columns.data.ptr,
            matrix.values.data.ptr,
            *csr_types(),
        )
        cleanup.callback(cudss.cudssMatrixDestroy, a_is)
        for dense, array in ((b_is, b), (x_is, x)):
            columns, leading = 1, n
            cudss.cudssMatrixCreateDn(
                ctypes.byref(dense), n, columns, leading, array.data.ptr, CUDA_R_64F, CUDSS_LAYOUT_COL_MAJOR
            )
            cleanup.callback(cudss.cudssMatrixDestroy, dense)

        for phase in (CUDSS_PHASE_ANALYSIS, CUDSS_PHASE_FACTORIZATION, CUDSS_PHASE_SOLVE):
            cudss.cudssExecute(handle, phase, config, data, a_is, x_is, b_is)
        stream.synchronize()
        return handle, x.get()


def check(matrix, seed):
    """Solve on the GPU and on the CPU, and compare."""
    right_side = np.random.default_rng(seed).standard_normal(matrix.unknowns)
    handle, x = solve(matrix, right_side)
    residual = np.linalg.norm(matrix.on_cpu @ x - right_side) / np.linalg.norm(right_side)
    expected = scipy.sparse.linalg.spsolve(matrix.on_cpu.tocsc(), right_side)
    return Result(handle, float(residual), float(abs(x - expected).max() / abs(expected).max()))


def wave(matrix, threads):
    """Check on that many threads at once, and return their results once the threads have ended."""
    all_started = threading.Barrier(threads, timeout=60)

    def work(seed):
        all_started.wait()
        return check(matrix, seed)

    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(work, range(threads)))


def main():
    """Run three waves of four threads and print what it took."""
    if not gpupool.cudss.available:
        print("cuDSS is not installed here; get it with: pip install nvidia-cudss-cu13")
        return
    threads, waves = 4, 3
    matrix = Poisson(128)
    results = [result for _ in range(waves) for result in wave(matrix, threads)]
    stats = gpupool.cudss.stats()
    print(f"cuDSS             {'.'.join(map(str, gpupool.cudss.version))}, {gpupool.cudss.path}")
    print(f"unknowns          {matrix.unknowns}")
    print(f"threads served    {len(results)}, {threads} at a time")
    print(f"handles created   {stats.created} in {stats.create_seconds * 1e3:.1f} ms")
    print(f"handed over       {stats.hand_overs} times")
    print(f"largest residual  {max(result.residual for result in results):.1e}")
    print(f"largest error     {max(result.error for result in results):.1e}")


if __name__ == "__main__":
    main()
