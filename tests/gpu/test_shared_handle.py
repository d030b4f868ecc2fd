"""One handle on two streams at once, in no order: results stay right.

So a handle needs to wait for nothing when it goes from one owner, and stream, to the next. Should a library keep
scratch memory in its handles one day, this is where it shows.
"""

import ctypes
import importlib

import gpupool
import numpy as np
from cudss_system import System
from gpu_helpers import cupy, import_or_skip, pool_or_skip

SINGLE = ctypes.c_float


def pointer(array):
    return ctypes.c_void_p(array.data.ptr)


def test_cublas():
    pool, streams = pool_or_skip("cublas"), [gpupool.Stream(), gpupool.Stream()]
    library, handle = ctypes.CDLL(pool.path), ctypes.c_void_p(pool.handle(streams[0]))
    one, zero = ctypes.byref(SINGLE(1)), ctypes.byref(SINGLE(0))
    # Long inner dimensions, which cuBLAS splits over workspace.
    for m, n, k in [(16, 16, 1_000_000), (64, 64, 200_000), (1, 1, 4_000_000)]:
        random = cupy.random.default_rng(1)
        left = [random.standard_normal((k, m), dtype=cupy.float32) for _ in streams]
        right = [random.standard_normal((n, k), dtype=cupy.float32) for _ in streams]
        products = [[cupy.empty((n, m), dtype=cupy.float32) for _ in range(100)] for _ in streams]
        cupy.cuda.runtime.deviceSynchronize()
        for turn in range(100):
            for stream, a, b, out in zip(streams, left, right, products, strict=True):
                assert library.cublasSetStream_v2(handle, ctypes.c_void_p(stream.ptr)) == 0
                leading = (pointer(a), m, pointer(b), k, zero, pointer(out[turn]), m)
                assert library.cublasSgemm_v2(handle, 0, 0, m, n, k, one, *leading) == 0
        cupy.cuda.runtime.deviceSynchronize()
        for a, b, out in zip(left, right, products, strict=True):
            expected = (b.astype(cupy.float64) @ a.astype(cupy.float64)).get()
            for product in out:
                np.testing.assert_allclose(product.get(), expected, rtol=1e-2, atol=0.02 * k**0.5)


def test_cusolver():
    pool, streams = pool_or_skip("cusolver"), [gpupool.Stream(), gpupool.Stream()]
    library, handle = ctypes.CDLL(pool.path), ctypes.c_void_p(pool.handle(streams[0]))
    n, size = 700, ctypes.c_int()
    random = np.random.default_rng(3)
    matrices, works = [], []
    for _ in streams:
        square = random.standard_normal((n, n)).astype(np.float32)
        matrices.append(cupy.asarray(square @ square.T + n * np.eye(n, dtype=np.float32)))
        assert library.cusolverDnSpotrf_bufferSize(handle, 0, n, pointer(matrices[-1]), n, ctypes.byref(size)) == 0
        works.append(cupy.empty(size.value, dtype=cupy.float32))
    information = cupy.zeros(2, dtype=cupy.int32)

    def factor(which, matrix):
        assert library.cusolverDnSetStream(handle, ctypes.c_void_p(streams[which].ptr)) == 0
        where = ctypes.c_void_p(information.data.ptr + 4 * which)
        work = works[which]
        assert library.cusolverDnSpotrf(handle, 0, n, pointer(matrix), n, pointer(work), work.size, where) == 0

    alone = [matrix.copy() for matrix in matrices]
    factors = [[matrix.copy() for _ in range(100)] for matrix in matrices]
    cupy.cuda.runtime.deviceSynchronize()
    for which, stream in enumerate(streams):
        factor(which, alone[which])
        stream.synchronize()
    for turn in range(100):
        for which in range(2):
            factor(which, factors[which][turn])
    cupy.cuda.runtime.deviceSynchronize()
    for expected, found in zip(alone, factors, strict=True):
        assert all(bool((one == expected).all()) for one in found)


def test_cudss():
    pool = pool_or_skip("cudss")
    import_or_skip("scipy.sparse.linalg")
    example, streams = importlib.import_module("solve_cudss"), [gpupool.Stream(), gpupool.Stream()]
    set_stream = ctypes.CDLL(pool.path).cudssSetStream
    handle, matrix = pool.handle(streams[0]), example.Poisson(96)
    systems = [System(example, handle, matrix, seed) for seed in range(2)]
    cupy.cuda.runtime.deviceSynchronize()

    def execute(which, phase):
        assert set_stream(ctypes.c_void_p(handle), ctypes.c_void_p(streams[which].ptr)) == 0
        systems[which].execute(phase)

    for which, stream in enumerate(streams):
        execute(which, example.CUDSS_PHASE_ANALYSIS)
        stream.synchronize()
    for _ in range(20):
        for phase in (example.CUDSS_PHASE_FACTORIZATION, example.CUDSS_PHASE_SOLVE):
            for which in range(2):
                execute(which, phase)
        cupy.cuda.runtime.deviceSynchronize()
        for system in systems:
            b = system.b.get()
            assert np.linalg.norm(matrix.on_cpu @ system.x.get() - b) / np.linalg.norm(b) < 1e-11
            system.x.fill(0)
        cupy.cuda.runtime.deviceSynchronize()
    for system in systems:
        system.free()


def test_cutensor():
    """A plan is the handle's; the streams share it as threads may."""
    pool, streams = pool_or_skip("cutensor"), [gpupool.Stream(), gpupool.Stream()]
    example = importlib.import_module("contract_cutensor")
    handle, random, work = pool.handle(), np.random.default_rng(7), []
    for _ in streams:
        left, right = (
            random.standard_normal([example.EXTENTS[m] for m in modes]) for modes in (example.LEFT, example.RIGHT)
        )
        expected = np.einsum(f"{example.LEFT},{example.RIGHT}->{example.OUT}", left, right, optimize=True)
        outs = [cupy.zeros(expected.shape) for _ in range(50)]
        work.append((cupy.asarray(left), cupy.asarray(right), outs, expected))
    cupy.cuda.runtime.deviceSynchronize()
    for turn in range(50):
        for stream, (left, right, outs, _) in zip(streams, work, strict=True):
            example.contract(handle, left, right, outs[turn], stream)
    cupy.cuda.runtime.deviceSynchronize()
    for _, _, outs, expected in work:
        for out in outs:
            np.testing.assert_allclose(out.get(), expected, rtol=0, atol=1e-11 * abs(expected).max())


def test_cusparselt():
    pool, streams = pool_or_skip("cusparselt"), [gpupool.Stream(), gpupool.Stream()]
    example = importlib.import_module("sparse_cusparselt")
    product, random, work = example.Product(pool.handle()), np.random.default_rng(9), []
    for stream in streams:
        left = cupy.asarray(random.standard_normal((example.ROWS, example.TERMS)).astype(np.float16))
        right = cupy.asarray(random.standard_normal((example.COLUMNS, example.TERMS)).astype(np.float16))
        cupy.cuda.runtime.deviceSynchronize()
        product.prune(left, stream)
        stream.synchronize()
        expected = left.astype(np.float64) @ right.astype(np.float64).T
        outs = [cupy.zeros((example.ROWS, example.COLUMNS), dtype=np.float16) for _ in range(50)]
        work.append((left, right, outs, expected))
    cupy.cuda.runtime.deviceSynchronize()
    for turn in range(50):
        for stream, (left, right, outs, _) in zip(streams, work, strict=True):
            product.compute(left, right, outs[turn], stream)
    cupy.cuda.runtime.deviceSynchronize()
    for _, _, outs, expected in work:
        for out in outs:
            assert float(abs(out - expected).max() / abs(expected).max()) < 2e-3
    product.close()
