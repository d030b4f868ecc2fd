"""Products that cuBLAS splits over its workspace."""

import ctypes

import gpupool
from gpu_helpers import cupy

# Many terms, few results. Where two at once share a workspace, most are wrong.
M, K, TURNS = 64, 200_000, 20


class Product:
    """A product of random matrices, and what it should be."""

    def __init__(self, seed):
        random = cupy.random.default_rng(seed)
        self.left = random.standard_normal((K, M), dtype=cupy.float32)
        self.right = random.standard_normal((M, K), dtype=cupy.float32)
        self.out = cupy.zeros((M, M), dtype=cupy.float32)
        self.expected = self.right.astype(cupy.float64) @ self.left.astype(cupy.float64)
        cupy.cuda.runtime.deviceSynchronize()

    def compute(self, handle, turns=TURNS):
        """Compute it with the handle, several times."""
        one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
        left, right, out = (ctypes.c_void_p(array.data.ptr) for array in (self.left, self.right, self.out))
        gemm = ctypes.CDLL(gpupool.cublas.path).cublasSgemm_v2
        for _ in range(turns):
            assert gemm(ctypes.c_void_p(handle), 0, 0, M, M, K, one, left, M, right, K, zero, out, M) == 0

    def is_right(self):
        """Say whether the result is, and forget it."""
        right = float(abs(self.out - self.expected).max()) < 1
        self.out.fill(0)
        cupy.cuda.runtime.deviceSynchronize()
        return right
