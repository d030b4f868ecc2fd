"""A product with a matrix of which half is zero, by cuSPARSELt, called through ctypes, by four threads at once.

cuSPARSELt's handles are structs of the caller's: gpupool has them, and hands out their addresses. They have no stream
and no workspace; each call takes both. The left matrix is pruned to two of four neighbours and compressed, and the
product is compared with that of the pruned matrix by CuPy.

Run it with: python examples/sparse_cusparselt.py
It needs CuPy, cuSPARSELt 0.7 or later (pip install nvidia-cusparselt-cu13), and compute capability 8.0 or more.
"""

import ctypes
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import NamedTuple

import cupy
import gpupool
import numpy as np

# Values of cuSPARSELt's, cuSPARSE's and CUDA's enums.
CUDA_R_16F = 2
CUSPARSE_ORDER_ROW = 2
CUSPARSE_OPERATION_NON_TRANSPOSE = 0
CUSPARSE_OPERATION_TRANSPOSE = 1
CUSPARSE_COMPUTE_32F = 2
CUSPARSELT_SPARSITY_50_PERCENT = 0
CUSPARSELT_MATMUL_ALG_DEFAULT = 0
CUSPARSELT_PRUNE_SPMMA_TILE = 0
# The bytes of a descriptor, a selection or a plan, which are structs of the caller's too: of version 0.6, the most.
STRUCT = 13072

ROWS, COLUMNS, TERMS = 512, 256, 1024


class Result(NamedTuple):
    """The result of one thread: its handle, how much of the left matrix is zero, and the largest relative error."""

    handle: int
    zeros: float
    error: float


@functools.cache
def load():
    """Load cuSPARSELt and describe the functions used here, which raise if their status is not 0."""
    cusparselt = ctypes.CDLL(gpupool.cusparselt.path)

    def check_status(status, function, _arguments):
        if status != 0:
            raise RuntimeError(f"{function.__name__}: status {status}")

    handle = struct = memory = stream = c_void_p
    shape = [c_int64, c_int64, c_int64, c_uint32, c_int, c_int]
    signatures = {
        "cusparseLtStructuredDescriptorInit": [handle, struct, *shape, c_int],
        "cusparseLtDenseDescriptorInit": [handle, struct, *shape],
        "cusparseLtMatDescriptorDestroy": [struct],
        "cusparseLtMatmulDescriptorInit": [handle, struct, c_int, c_int] + [struct] * 4 + [c_int],
        "cusparseLtMatmulAlgSelectionInit": [handle, struct, struct, c_int],
        "cusparseLtMatmulPlanInit": [handle, struct, struct, struct],
        "cusparseLtMatmulPlanDestroy": [struct],
        "cusparseLtMatmulGetWorkspace": [handle, struct, POINTER(c_size_t)],
        "cusparseLtSpMMAPrune": [handle, struct, memory, memory, c_int, stream],
        "cusparseLtSpMMACompressedSize": [handle, struct, POINTER(c_size_t), POINTER(c_size_t)],
        "cusparseLtSpMMACompress": [handle, struct, memory, memory, memory, stream],
        "cusparseLtMatmul": [
            *(handle, struct, POINTER(c_float), memory, memory, POINTER(c_float), memory, memory),
            *(memory, POINTER(c_void_p), c_int32),
        ],
    }
    for name, types in signatures.items():
        function = getattr(cusparselt, name)
        function.argtypes = types
        function.errcheck = check_status
    return cusparselt


def place():
    """Return the address of a struct, and what keeps it: aligned to 16 bytes."""
    kept = ctypes.create_string_buffer(STRUCT + 16)
    return -(-ctypes.addressof(kept) // 16) * 16, kept


class Product:
    """The product of a matrix that is pruned and compressed with the transpose of another one, by rows."""

    def __init__(self, handle):
        self.api, self.handle, self.kept, self.cleanup = load(), handle, [], ExitStack()
        left = self.made("StructuredDescriptor", *self.shape(ROWS, TERMS), CUSPARSELT_SPARSITY_50_PERCENT)
        right = self.made("DenseDescriptor", *self.shape(COLUMNS, TERMS))
        out = self.made("DenseDescriptor", *self.shape(ROWS, COLUMNS))
        for matrix in (left, right, out):
            self.cleanup.callback(self.api.cusparseLtMatDescriptorDestroy, matrix)
        operations = (CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_TRANSPOSE)
        self.product = self.made("MatmulDescriptor", *operations, left, right, out, out, CUSPARSE_COMPUTE_32F)
        selection = self.made("MatmulAlgSelection", self.product, CUSPARSELT_MATMUL_ALG_DEFAULT)
        self.plan = self.made("MatmulPlan", self.product, selection)
        self.cleanup.callback(self.api.cusparseLtMatmulPlanDestroy, self.plan)

    @staticmethod
    def shape(rows, columns):
        """Return what a descriptor is told of a matrix that is stored by rows."""
        return rows, columns, columns, 16, CUDA_R_16F, CUSPARSE_ORDER_ROW

    def made(self, what, *arguments):
        """Return the address of a struct that was filled."""
        address, kept = place()
        self.kept.append(kept)
        getattr(self.api, f"cusparseLt{what}Init")(self.handle, address, *arguments)
        return address

    def prune(self, matrix, stream):
        """Set two of four neighbours to zero."""
        where = matrix.data.ptr, matrix.data.ptr
        self.api.cusparseLtSpMMAPrune(self.handle, self.product, *where, CUSPARSELT_PRUNE_SPMMA_TILE, stream.ptr)

    def compute(self, left, right, out, stream):
        """Compress the left matrix and multiply, with memory of gpupool's that is freed in the order of the stream."""
        compressed, buffer, workspace = c_size_t(), c_size_t(), c_size_t()
        self.api.cusparseLtSpMMACompressedSize(self.handle, self.plan, byref(compressed), byref(buffer))
        self.api.cusparseLtMatmulGetWorkspace(self.handle, self.plan, byref(workspace))
        small, scratch, work = (gpupool.empty(size.value, stream) for size in (compressed, buffer, workspace))
        self.api.cusparseLtSpMMACompress(self.handle, self.plan, left.data.ptr, small.ptr, scratch.ptr, stream.ptr)
        factors = (byref(c_float(1)), small.ptr, right.data.ptr, byref(c_float(0)), out.data.ptr, out.data.ptr)
        self.api.cusparseLtMatmul(self.handle, self.plan, *factors, work.ptr, byref(c_void_p(stream.ptr)), 1)

    def close(self):
        """Destroy the plan and the descriptors."""
        self.cleanup.close()


def check(seed):
    """Multiply with cuSPARSELt and with CuPy, and compare."""
    random = np.random.default_rng(seed)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        handle = gpupool.cusparselt.handle(stream)
        left = cupy.asarray(random.standard_normal((ROWS, TERMS)).astype(np.float16))
        right = cupy.asarray(random.standard_normal((COLUMNS, TERMS)).astype(np.float16))
        out = cupy.zeros((ROWS, COLUMNS), dtype=np.float16)
        product = Product(handle)
        product.prune(left, stream)
        product.compute(left, right, out, stream)
        expected = left.astype(np.float64) @ right.astype(np.float64).T
        error = float(abs(out - expected).max() / abs(expected).max())
        zeros = float((left == 0).mean())
        product.close()
    return Result(handle, zeros, error)


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
    if not gpupool.cusparselt.available:
        print("cuSPARSELt is not installed here; get it with: pip install nvidia-cusparselt-cu13")
        return
    threads, waves = 4, 3
    results = [result for _ in range(waves) for result in wave(threads)]
    stats = gpupool.cusparselt.stats()
    print(f"cuSPARSELt        {'.'.join(map(str, gpupool.cusparselt.version))}, {gpupool.cusparselt.path}")
    print(f"threads served    {len(results)}, {threads} at a time")
    print(f"handles created   {stats.created} in {stats.create_seconds * 1e3:.1f} ms")
    print(f"handed over       {stats.hand_overs} times")
    print(f"zeros             {min(result.zeros for result in results):.0%} of the left matrix")
    print(f"largest error     {max(result.error for result in results):.1e}")


if __name__ == "__main__":
    main()
