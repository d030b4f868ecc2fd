"""CuPy's handles from gpupool: those of threads go back to the pools, and are nobody else's meanwhile."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import cupy
import cupyx.scipy.sparse
import gpupool
import numpy
from cupy_backends.cuda.libs import cublas
from waiting import LONG, wait_until


def use_libraries(seed):
    """Multiply, factorise and add up, and compare with NumPy's results."""
    a = numpy.random.default_rng(seed).standard_normal((64, 64))
    s = a @ a.T + 64 * numpy.eye(64)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        on_gpu = cupy.asarray(a)
        product = on_gpu @ on_gpu.T + 64 * cupy.eye(64)
        factor = cupy.linalg.cholesky(product)
        sums = cupyx.scipy.sparse.csr_matrix(product) @ cupy.ones(64)
        assert numpy.allclose(product.get(), s), "cuBLAS's product is wrong"
        assert numpy.allclose(factor.get(), numpy.linalg.cholesky(s)), "cuSOLVER's factor is wrong"
        assert numpy.allclose(sums.get(), s.sum(axis=1)), "cuSPARSE's sums are wrong"
        stream.synchronize()


def threads_give_theirs_back(threads):
    together = threading.Barrier(threads, timeout=LONG)

    def work(seed):
        together.wait()
        use_libraries(seed)
        assert gpupool.cublas.stats().leased >= 1, "CuPy's handle is none of gpupool's"
        together.wait()

    for _ in range(3):
        with ThreadPoolExecutor(threads) as executor:
            list(executor.map(work, range(threads)))
    for pool in (gpupool.cublas, gpupool.cusolver, gpupool.cusparse):
        # Python joins a thread a little before it ends.
        wait_until(lambda pool=pool: pool.stats().leased == 0, f"{pool.name} handles are back")
        stats = pool.stats()
        assert 1 <= stats.created <= threads, f"{threads} threads needed {stats.created} handles of {pool.name}"
        assert stats.idle == stats.created, f"handles of {pool.name} are not idle: {stats}"


def whoever_makes_one_has_it_for_itself():
    first, second = cublas.create(), cublas.create()
    assert first != second, "the same handle was made twice"
    cublas.destroy(first)
    cublas.destroy(second)
    leased = gpupool.cublas.stats().leased
    assert leased == 0, f"{leased} destroyed handles are lent still"


def disabled_they_are_cupys_own():
    gpupool.cupy.disable()
    created = gpupool.cublas.stats().created
    thread = threading.Thread(target=lambda: cupy.ones((8, 8)) @ cupy.ones((8, 8)))
    thread.start()
    thread.join()
    assert gpupool.cublas.stats().created == created, "disabled, CuPy has made a handle of gpupool's"


def main(threads):
    gpupool.cupy.enable(handles=True)
    threads_give_theirs_back(int(threads))
    whoever_makes_one_has_it_for_itself()
    disabled_they_are_cupys_own()
    gpupool.cupy.enable(handles=True)
    # The main thread has one when the process ends.
    assert float((cupy.eye(8) @ cupy.eye(8)).sum()) == 8, "the product is wrong"
    leased = gpupool.cublas.stats().leased
    assert leased == 1, f"the main thread has {leased} handles"


if __name__ == "__main__":
    main(*sys.argv[1:])
