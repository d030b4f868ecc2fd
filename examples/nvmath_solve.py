"""Solve sparse systems with nvmath-python in four threads, with and without gpupool: peak memory and time side by side.

The solver is the same both times; with gpupool it gets a leased cuDSS handle in its options, and cuDSS takes its memory
from a MemPool. Without gpupool nvmath makes a handle for each solver.

Run it with: python examples/nvmath_solve.py

It needs nvmath-python, CuPy, SciPy and the cuDSS that nvmath asks for (pip install 'nvmath-python[cu13]' cupy-cuda13x).
"""

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import cupy
import cupyx.scipy.sparse
import gpupool
import scipy.sparse

THREADS, SOLVES = 4, 6
MIB = 1 << 20

# A function that returns a context manager of a solver's options.
Options = Callable[[cupy.cuda.Stream], AbstractContextManager[dict[str, Any]]]


class Result(NamedTuple):
    """The result of a run: device memory at its peak, seconds, and the largest relative residual."""

    peak: int
    seconds: float
    residual: float


def poisson(side: int) -> cupyx.scipy.sparse.csr_matrix:
    """Return the 5-point Laplacian on a square grid."""
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    matrix = scipy.sparse.csr_matrix(scipy.sparse.kronsum(line, line, format="csr"))
    on_gpu = cupyx.scipy.sparse.csr_matrix(matrix)
    # Streams of other threads are going to read it.
    cupy.cuda.runtime.deviceSynchronize()
    return on_gpu


@contextmanager
def of_nvmath(_stream: cupy.cuda.Stream) -> Iterator[dict[str, Any]]:
    """Leave all to nvmath."""
    yield {}


def of_gpupool(stream: cupy.cuda.Stream) -> AbstractContextManager[dict[str, Any]]:
    """Lend a handle in the solver's options.

    This is all that differs, with the line in `main` that gives cuDSS a MemPool.
    """
    return gpupool.nvmath.options(gpupool.cudss, stream)


def solve(matrix: cupyx.scipy.sparse.csr_matrix, seed: int, give_options: Options) -> tuple[float, int]:
    """Solve for one right-hand side, and return the residual and what was free while the factors were there."""
    from nvmath.sparse.advanced import DirectSolver

    with cupy.cuda.Stream(non_blocking=True) as stream:
        b = cupy.random.default_rng(seed).standard_normal(matrix.shape[0])
        with give_options(stream) as options, DirectSolver(matrix, b, options=options, stream=stream) as solver:
            solver.plan()
            solver.factorize()
            x = solver.solve()
            stream.synchronize()
            free, _total = cupy.cuda.runtime.memGetInfo()
            return float(abs(matrix @ x - b).max() / abs(b).max()), free


def run(matrix: cupyx.scipy.sparse.csr_matrix, give_options: Options) -> Result:
    """Solve a number of systems in each of the threads."""
    # First CuPy, and the driver's pool that nvmath takes from, give back what they keep of earlier runs.
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.cuda.runtime.memPoolTrimTo(cupy.cuda.runtime.deviceGetMemPool(cupy.cuda.Device().id), 0)
    before, _total = cupy.cuda.runtime.memGetInfo()
    start = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as executor:
        work = [executor.submit(solve, matrix, seed, give_options) for seed in range(THREADS * SOLVES)]
        results = [solved.result() for solved in work]
    seconds = time.perf_counter() - start
    least = min(free for _, free in results)
    return Result(before - least, seconds, max(residual for residual, _ in results))


def main() -> None:
    """Run both and print what they took."""
    hint = "get both with: pip install 'nvmath-python[cu13]'"
    try:
        import nvmath
    except ImportError as error:
        print(f"nvmath-python is not installed here ({error}); {hint}")
        return
    if not gpupool.cudss.available:
        print(f"cuDSS is not installed here; {hint}")
        return
    # nvmath warns of every solver that plans without a library of threads, which is meant here: the threads are ours.
    logging.getLogger().setLevel(logging.ERROR)
    matrix = poisson(384)
    try:
        # The first use loads and compiles, which counts for neither.
        solve(matrix, 0, of_nvmath)
    except RuntimeError as error:
        if "requires cuDSS version" not in str(error):
            raise
        print(f"{error} {hint}")
        return
    without = run(matrix, of_nvmath)
    gpupool.cudss.set_mem_pool(gpupool.MemPool())
    with_gpupool = run(matrix, of_gpupool)
    gpupool.cudss.set_mem_pool(None)

    print(f"nvmath-python     {nvmath.__version__}, cuDSS {'.'.join(map(str, gpupool.cudss.version))}")
    print(f"unknowns          {matrix.shape[0]}")
    print(f"threads served    {THREADS}, {SOLVES} solves each")
    print(f"handles created   {gpupool.cudss.stats().created} instead of {THREADS * SOLVES}")
    print()
    print(f"{'':18}{'peak memory':>14}{'time':>12}{'residual':>12}")
    for name, result in (("nvmath", without), ("with gpupool", with_gpupool)):
        print(f"{name:18}{result.peak / MIB:>10.0f} MiB{result.seconds:>10.2f} s{result.residual:>12.1e}")


if __name__ == "__main__":
    main()
