"""cuDSS takes its memory from a MemPool: right results, in many threads, while the pool changes, and all of it back."""

import importlib

import gpupool
import pytest
from cudss_system import System
from gpu_helpers import (
    cupy,
    import_or_skip,
    in_threads_until_returned,
    name_of_handler,
    pool_or_skip,
    run_program,
    wait_for_all_back,
)
from waiting import wait_until

pytestmark = pytest.mark.device_memory(gib=3)

MIB = 1 << 20
THREADS = 16


@pytest.fixture
def cudss():
    """Return the example's way to call cuDSS. Afterwards handles are as if no MemPool had been set."""
    pool_or_skip("cudss")
    import_or_skip("scipy.sparse.linalg")
    gpupool.cudss.trim()
    yield importlib.import_module("solve_cudss")
    gpupool.cudss.set_mem_pool(None)
    gpupool.cudss.trim()


def solve_once(cudss, handle, matrix, mem_pool):
    """Solve and free. Return the residual and how much the MemPool had to give."""
    system = System(cudss, handle, matrix)
    system.factorise()
    residual, taken = system.residual(), mem_pool.stats().live_bytes
    system.free()
    return residual, taken


def test_what_cudss_allocates_is_counted_used_again_and_given_back(cudss):
    matrix, mem_pool = cudss.Poisson(256), gpupool.MemPool()
    before = gpupool.memory_stats().live_bytes
    gpupool.cudss.set_mem_pool(mem_pool)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        with gpupool.cudss.lease(stream) as handle:
            assert name_of_handler(gpupool.cudss, handle) == "gpupool.MemPool"
            residual, taken = solve_once(cudss, int(handle), matrix, mem_pool)
            stream.synchronize()
            # The factors alone have several times the values of the matrix.
            assert residual < 1e-10
            assert taken > 8 * matrix.values.size
            kept, reserved = mem_pool.stats().live_bytes, mem_pool.stats().reserved_bytes
            for _ in range(5):
                assert solve_once(cudss, int(handle), matrix, mem_pool)[0] < 1e-10
                stream.synchronize()
            # Not six times as much.
            assert mem_pool.stats().live_bytes == kept
            assert mem_pool.stats().reserved_bytes < 2 * reserved
        wait_for_all_back(gpupool.cudss, mem_pool)
    wait_until(lambda: gpupool.empty_cache() >= 0 and mem_pool.stats().reserved_bytes == 0, "the pages are given back")
    assert gpupool.memory_stats().live_bytes == before


def test_sixteen_threads_take_from_one_pool(cudss):
    matrix, mem_pool = cudss.Poisson(64), gpupool.MemPool()
    gpupool.cudss.set_mem_pool(mem_pool)

    def work(number):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            residuals = []
            for turn in range(5):
                if (number + turn) % 2:
                    handle = gpupool.cudss.handle(stream)
                    residuals.append(solve_once(cudss, handle, matrix, mem_pool)[0])
                else:
                    with gpupool.cudss.lease(stream) as lease:
                        residuals.append(solve_once(cudss, int(lease), matrix, mem_pool)[0])
            stream.synchronize()
            return max(residuals)

    assert max(in_threads_until_returned(gpupool.cudss, THREADS, work)) < 1e-10
    assert mem_pool.stats().allocations > 5 * THREADS
    wait_for_all_back(gpupool.cudss, mem_pool)


@pytest.mark.parametrize("first", ["own", "pool"])
def test_it_changes_while_cudss_has_memory(cudss, first):
    matrix = cudss.Poisson(128)
    one, two = gpupool.MemPool(), gpupool.MemPool()
    gpupool.cudss.set_mem_pool(None if first == "own" else one)

    def work(_):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            handle, systems = gpupool.cudss.handle(stream), []
            for mem_pool in (one, two, None, two, one, None):
                systems.append(System(cudss, handle, matrix))
                systems[-1].factorise()
                gpupool.cudss.set_mem_pool(mem_pool)
                assert gpupool.cudss.handle(stream) == handle
                # What they have came from elsewhere; some of it is taken anew.
                for system in systems:
                    system.execute(cudss.CUDSS_PHASE_FACTORIZATION)
                    assert system.residual() < 1e-10
            stream.synchronize()
            assert min(one.stats().allocations, two.stats().allocations) > 0
            for system in systems[::2] + systems[1::2]:
                system.free()
            stream.synchronize()
            return handle

    in_threads_until_returned(gpupool.cudss, 1, work)
    wait_for_all_back(gpupool.cudss, one, two)
    assert (one.use_count(), two.use_count()) == (1, 1)
    stream = gpupool.Stream()
    with gpupool.cudss.lease(stream) as new:
        assert name_of_handler(gpupool.cudss, new) is None


def test_a_pool_that_is_dropped_stays_while_cudss_has_its_memory(cudss):
    matrix, mem_pool = cudss.Poisson(128), gpupool.MemPool()
    before = gpupool.memory_stats().live_bytes
    gpupool.cudss.set_mem_pool(mem_pool)
    with cupy.cuda.Stream(non_blocking=True) as stream, gpupool.cudss.lease(stream) as handle:
        system = System(cudss, int(handle), matrix)
        system.factorise()
        gpupool.cudss.set_mem_pool(None)
        del mem_pool
        gpupool.empty_cache()
        assert gpupool.memory_stats().live_bytes > before
        assert system.residual() < 1e-10
        system.free()
        stream.synchronize()
    gpupool.cudss.trim()
    wait_until(lambda: gpupool.empty_cache() >= 0 and gpupool.memory_stats().live_bytes == before, "the memory is back")


def test_a_limit_fails_the_call_and_nothing_else(cudss):
    matrix, mem_pool = cudss.Poisson(256), gpupool.MemPool(limit=4 * MIB)
    gpupool.cudss.set_mem_pool(mem_pool)
    with cupy.cuda.Stream(non_blocking=True) as stream, gpupool.cudss.lease(stream) as handle:
        system = System(cudss, int(handle), matrix)
        with pytest.raises(RuntimeError, match="cudssExecute: status"):
            system.factorise()
        stream.synchronize()
        system.free()
        mem_pool.limit = None
        assert solve_once(cudss, int(handle), matrix, mem_pool)[0] < 1e-10
        stream.synchronize()
    wait_for_all_back(gpupool.cudss, mem_pool)


@pytest.mark.parametrize("order", ["gpupool,cupy", "cupy,gpupool"])
@pytest.mark.usefixtures("cudss")
def test_a_process_ends_well_with_factors_alive(order):
    run_program("ends/with_frameworks.py", *order.split(","), "cudss_factors")
