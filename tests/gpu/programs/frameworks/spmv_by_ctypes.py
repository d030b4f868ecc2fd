"""A sparse matrix times a vector with the cuSPARSE that gpupool loaded, called through ctypes.

That may be of any CUDA version, while CuPy, which allocates the memory, has its own. Prints the version, the file and
the largest error.
"""

import ctypes
from ctypes import POINTER, byref, c_double, c_int, c_int64, c_size_t, c_void_p

import cupy
import gpupool
import numpy as np
import scipy.sparse

# Values of cuSPARSE's and CUDA's enums.
CUSPARSE_OPERATION_NON_TRANSPOSE = 0
CUSPARSE_INDEX_32I = 2
CUSPARSE_INDEX_BASE_ZERO = 0
CUSPARSE_SPMV_ALG_DEFAULT = 0
CUDA_R_64F = 1

ARGUMENTS = {
    "cusparseCreateCsr": [
        c_void_p,
        c_int64,
        c_int64,
        c_int64,
        c_void_p,
        c_void_p,
        c_void_p,
        c_int,
        c_int,
        c_int,
        c_int,
    ],
    "cusparseCreateDnVec": [c_void_p, c_int64, c_void_p, c_int],
    "cusparseSpMV_bufferSize": [c_void_p, c_int, *[c_void_p] * 5, c_int, c_int, POINTER(c_size_t)],
    "cusparseSpMV": [c_void_p, c_int, *[c_void_p] * 5, c_int, c_int, c_void_p],
    "cusparseDestroySpMat": [c_void_p],
    "cusparseDestroyDnVec": [c_void_p],
}


def load():
    """Returns the library, whose functions raise if they are refused."""
    cusparse = ctypes.CDLL(gpupool.cusparse.path)

    def check(status, function, _):
        if status:
            raise RuntimeError(f"{function.__name__} failed with status {status}")

    for name, arguments in ARGUMENTS.items():
        function = getattr(cusparse, name)
        function.argtypes, function.restype, function.errcheck = arguments, c_int, check
    return cusparse


def main():
    """Computes one product and compares it with SciPy's."""
    matrix = scipy.sparse.random(2000, 1500, 0.01, format="csr", rng=np.random.default_rng(1))
    vector = np.random.default_rng(2).standard_normal(1500)
    cusparse, stream = load(), gpupool.Stream()
    with cupy.cuda.ExternalStream(stream.ptr):
        arrays = [cupy.asarray(part) for part in (matrix.indptr, matrix.indices, matrix.data)]
        x, y = cupy.asarray(vector), cupy.empty(2000)
        a_is, x_is, y_is = c_void_p(), c_void_p(), c_void_p()
        addresses = [array.data.ptr for array in arrays]
        index = CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO
        cusparse.cusparseCreateCsr(byref(a_is), 2000, 1500, matrix.nnz, *addresses, *index, CUDA_R_64F)
        cusparse.cusparseCreateDnVec(byref(x_is), 1500, x.data.ptr, CUDA_R_64F)
        cusparse.cusparseCreateDnVec(byref(y_is), 2000, y.data.ptr, CUDA_R_64F)
        with gpupool.cusparse.lease(stream) as lease:
            handle = int(lease)
            one, zero, size = c_double(1), c_double(0), c_size_t()
            operands = CUSPARSE_OPERATION_NON_TRANSPOSE, byref(one), a_is, x_is, byref(zero), y_is, CUDA_R_64F
            cusparse.cusparseSpMV_bufferSize(handle, *operands, CUSPARSE_SPMV_ALG_DEFAULT, byref(size))
            buffer = gpupool.empty(max(size.value, 1), stream)
            cusparse.cusparseSpMV(handle, *operands, CUSPARSE_SPMV_ALG_DEFAULT, buffer.ptr)
        error = np.abs(cupy.asnumpy(y) - matrix @ vector).max()
    cusparse.cusparseDestroySpMat(a_is)
    cusparse.cusparseDestroyDnVec(x_is)
    cusparse.cusparseDestroyDnVec(y_is)
    print(
        f"cuSPARSE {'.'.join(map(str, gpupool.cusparse.version))}, {gpupool.cusparse.path}: largest error {error:.1e}"
    )
    assert error < 1e-10


if __name__ == "__main__":
    main()
