"""nvmath-python on leased handles and gpupool's memory: right results, shared handles, nothing left behind."""

import ctypes
import os

import gpupool
import pytest
from equations import poisson
from gpu_helpers import (
    cupy,
    import_or_skip,
    in_threads,
    name_of_handler,
    pool_or_skip,
    run_program,
    wait_for_all_back,
)

pytestmark = pytest.mark.device_memory(gib=4)

MIB = 1 << 20
THREADS = 16


@pytest.fixture
def nvmath():
    """Return nvmath-python, or skip."""
    return import_or_skip("nvmath")


@pytest.fixture
def advanced(nvmath):
    """Return nvmath's sparse solvers, where they take the cuDSS that is here. Afterwards no handle is left."""
    pool_or_skip("cudss")
    advanced = import_or_skip("nvmath.sparse.advanced")
    gpupool.cudss.trim()
    a, b = poisson(4)
    try:
        with gpupool.nvmath.options(gpupool.cudss) as options, advanced.DirectSolver(a, b, options=options):
            pass
    except RuntimeError as refusal:
        if "requires cuDSS version" not in str(refusal):
            raise
        pytest.skip(str(refusal))
    gpupool.cudss.trim()
    yield advanced
    gpupool.cudss.set_mem_pool(None)
    gpupool.cudss.trim()


def solve(advanced, a, b, stream, **others):
    """Solve on a leased handle. Return the residual and the handle."""
    with (
        gpupool.nvmath.options(gpupool.cudss, stream, **others) as options,
        advanced.DirectSolver(a, b, options=options, stream=stream) as solver,
    ):
        assert solver.handle == options["handle"]
        solver.plan()
        solver.factorize()
        x = solver.solve()
        residual = float(abs(a @ x - b).max() / abs(b).max())
        return residual, options["handle"]


def test_cudss_s_memory_is_the_pool_s_also_where_nvmath_would_set_its_own(advanced):
    a, b = poisson(128)
    mem_pool = gpupool.MemPool()
    gpupool.cudss.set_mem_pool(mem_pool)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        # Not blocking is when nvmath gives cuDSS an allocator of its own, unless there is one.
        assert solve(advanced, a, b, stream, blocking="auto")[0] < 1e-10
        stream.synchronize()
    assert mem_pool.stats().peak_live_bytes > a.nnz * 8
    wait_for_all_back(gpupool.cudss, mem_pool)


def test_nvmath_s_allocator_is_gone_with_the_lease(advanced):
    a, b = poisson(32)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        residual, handle = solve(advanced, a, b, stream, blocking="auto")
        assert residual < 1e-10
        with gpupool.cudss.lease(stream) as lease:
            assert int(lease) == handle
            assert name_of_handler(gpupool.cudss, handle) is None


def test_sixteen_threads_solve_at_once(advanced):
    a, b = poisson(64)
    mem_pool = gpupool.MemPool()
    gpupool.cudss.set_mem_pool(mem_pool)
    created = gpupool.cudss.stats().created

    def work(_):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            residuals = [solve(advanced, a, b, stream)[0] for _ in range(3)]
            stream.synchronize()
            return max(residuals)

    assert max(in_threads(THREADS, work)) < 1e-10
    assert gpupool.cudss.stats().leased == 0
    assert gpupool.cudss.stats().created - created <= THREADS
    wait_for_all_back(gpupool.cudss, mem_pool)


def test_a_handle_with_a_threading_layer_is_not_lent_again(advanced):
    folder = os.path.dirname(gpupool.cudss.path)
    layers = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if "mtlayer_gomp" in name]
    if not layers:
        pytest.skip("needs cuDSS's threading layer beside it")
    try:
        ctypes.CDLL(layers[0])
    except OSError as error:
        pytest.skip(str(error))
    a, b = poisson(64)
    discarded = gpupool.cudss.stats().discarded
    with cupy.cuda.Stream(non_blocking=True) as stream:
        residual, handle = solve(advanced, a, b, stream, multithreading_lib=layers[0])
        assert residual < 1e-10
        assert gpupool.cudss.stats().discarded == discarded + 1
        assert solve(advanced, a, b, stream)[1] != handle
        stream.synchronize()
    assert gpupool.cudss.trim() == 2


def test_a_product_on_a_leased_handle(nvmath):
    pool_or_skip("cublaslt")
    linalg = import_or_skip("nvmath.linalg.advanced")
    rng = cupy.random.default_rng(3)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        a, b = rng.standard_normal((512, 300)), rng.standard_normal((300, 400))
        with (
            gpupool.nvmath.options(gpupool.cublaslt, stream) as options,
            linalg.Matmul(a, b, options=options, stream=stream) as product,
        ):
            assert product.handle == options["handle"]
            product.plan()
            result = product.execute()
            assert float(abs(result - a @ b).max()) < 1e-10
        stream.synchronize()
    assert gpupool.cublaslt.stats().leased == 0


def test_a_dense_solver_s_workspace_is_gpupool_s(nvmath):
    pool_or_skip("cusolver")
    linalg = import_or_skip("nvmath.linalg.generic")
    if not hasattr(linalg, "DirectSolver"):
        pytest.skip("needs nvmath-python 1.0")
    rng, mem_pool = cupy.random.default_rng(4), gpupool.MemPool()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        a = cupy.asfortranarray(rng.standard_normal((512, 512)) + 512 * cupy.eye(512))
        b = cupy.asfortranarray(rng.standard_normal((512, 4)))
        with (
            gpupool.use_mem_pool(mem_pool),
            gpupool.nvmath.options(gpupool.cusolver, stream) as options,
            linalg.DirectSolver(a.copy(order="F"), b.copy(order="F"), options=options, stream=stream) as solver,
        ):
            solver.plan()
            solver.factorize()
            x = solver.solve()
            assert float(abs(a @ x - b).max()) < 1e-10
            assert mem_pool.stats().allocations > 0
        stream.synchronize()
    wait_for_all_back(gpupool.cudss, mem_pool)


def test_the_memory_manager_works_on_nvmath_s_streams(nvmath):
    core = import_or_skip("cuda.core")
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    manager = gpupool.nvmath.MemoryManager(0)
    assert isinstance(manager, nvmath.BaseCUDAMemoryManagerAsync)
    before = gpupool.memory_stats(0).live_bytes
    buffer = manager.memalloc_async(3 * MIB, stream)
    assert (buffer.stream, gpupool.memory_stats(0).live_bytes - before) == (int(stream.handle), 3 * MIB)
    with cupy.cuda.ExternalStream(int(stream.handle)):
        cupy.asarray(buffer)[:] = 5
        assert int(cupy.asarray(buffer).sum(dtype=cupy.int64)) == 5 * 3 * MIB
    address = buffer.ptr
    del buffer
    assert gpupool.memory_stats(0).live_bytes == before
    assert manager.memalloc_async(3 * MIB, stream).ptr == address
    with pytest.raises(MemoryError):
        manager.memalloc_async(1 << 50, stream)


@pytest.mark.parametrize("order", ["gpupool,nvmath", "nvmath,gpupool"])
@pytest.mark.usefixtures("advanced")
def test_a_process_ends_well_with_a_solver_alive(order):
    run_program("ends/with_frameworks.py", "quietly", *order.split(","), "nvmath_solver")
