"""Sparse equations on the GPU."""

from gpu_helpers import cupy, import_or_skip


def poisson(side):
    """Return the 5-point Laplacian on a square grid, and a right-hand side."""
    scipy = import_or_skip("scipy.sparse")
    sparse = import_or_skip("cupyx.scipy.sparse")
    line = scipy.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    a = sparse.csr_matrix(scipy.csr_matrix(scipy.kronsum(line, line, format="csr")))
    b = cupy.random.default_rng(5).standard_normal(side * side)
    # Streams of other threads are going to read them.
    cupy.cuda.runtime.deviceSynchronize()
    return a, b
