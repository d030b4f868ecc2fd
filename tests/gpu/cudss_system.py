"""Equations that cuDSS solves, by the functions that the example `solve_cudss` calls."""

import ctypes
from contextlib import ExitStack
from ctypes import c_void_p

from gpu_helpers import cupy


class System:
    """Equations in cuDSS's hands, on CuPy's current stream, until they are freed."""

    def __init__(self, cudss, handle, matrix, seed=7):
        self.example, self.handle, self.matrix = cudss, handle, matrix
        self.api, self.cleanup = cudss.load(), ExitStack()
        self.b = cupy.random.default_rng(seed).standard_normal(matrix.unknowns)
        self.x = cupy.zeros_like(self.b)
        self.config, self.data, *self.operands = (c_void_p() for _ in range(5))
        self.api.cudssConfigCreate(ctypes.byref(self.config))
        self.cleanup.callback(self.api.cudssConfigDestroy, self.config)
        self.api.cudssDataCreate(handle, ctypes.byref(self.data))
        self.cleanup.callback(lambda: self.api.cudssDataDestroy(self.handle, self.data))
        a_is, x_is, b_is = self.operands
        n = matrix.unknowns
        arrays = matrix.offsets.data.ptr, None, matrix.columns.data.ptr, matrix.values.data.ptr
        self.api.cudssMatrixCreateCsr(ctypes.byref(a_is), n, n, matrix.values.size, *arrays, *cudss.csr_types())
        self.cleanup.callback(self.api.cudssMatrixDestroy, a_is)
        for dense, array in ((x_is, self.x), (b_is, self.b)):
            layout = cudss.CUDA_R_64F, cudss.CUDSS_LAYOUT_COL_MAJOR
            self.api.cudssMatrixCreateDn(ctypes.byref(dense), n, 1, n, array.data.ptr, *layout)
            self.cleanup.callback(self.api.cudssMatrixDestroy, dense)

    def execute(self, *phases):
        for phase in phases:
            self.api.cudssExecute(self.handle, phase, self.config, self.data, *self.operands)

    def factorise(self):
        self.execute(self.example.CUDSS_PHASE_ANALYSIS, self.example.CUDSS_PHASE_FACTORIZATION)

    def residual(self):
        """Solve, and say how far off the solution is."""
        self.x.fill(0)
        self.execute(self.example.CUDSS_PHASE_SOLVE)
        b = self.b.get()
        return float(abs(self.matrix.on_cpu @ self.x.get() - b).max() / abs(b).max())

    def free(self):
        self.cleanup.close()
