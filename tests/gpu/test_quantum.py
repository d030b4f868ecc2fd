"""cuStateVec and cuTensorNet take memory from a MemPool, and cuquantum-python and nvmath-python take gpupool's handles.

What their documentation leaves open is printed, for what gpupool assumes where it was not known.
"""

import ctypes
import importlib

import gpupool
import numpy as np
import pytest
from gpu_helpers import (
    cupy,
    import_or_skip,
    in_threads_until_returned,
    name_of_handler,
    pool_or_skip,
    wait_for_all_back,
)
from long_kernel import spin
from waiting import wait_until

pytestmark = pytest.mark.device_memory(gib=4)

MIB = 1 << 20
at = ctypes.c_void_p
both = pytest.mark.parametrize("name", ["custatevec", "cutensornet"])


@pytest.fixture
def pool(name):
    """Return the pool of a library. Afterwards handles are as if no MemPool had been set."""
    pool = pool_or_skip(name)
    pool.trim()
    yield pool
    pool.set_mem_pool(None)
    pool.trim()


def set_handler(pool, handle, handler):
    """Return the status of setting a handler, or none."""
    return getattr(ctypes.CDLL(pool.path), f"{pool.name}SetDeviceMemHandler")(at(int(handle)), handler)


def example_of(pool):
    return importlib.import_module({"custatevec": "gates_custatevec", "cutensornet": "contract_cutensornet"}[pool.name])


def needs_memory(result):
    """Return whether a call took memory beside the handle's own: a gate may find enough there."""
    return getattr(result, "workspace_bytes", 1) > 0


@both
def test_what_it_allocates_is_counted_used_again_and_given_back(pool):
    example, mem_pool = example_of(pool), gpupool.MemPool()
    before = gpupool.memory_stats().live_bytes
    pool.set_mem_pool(mem_pool)
    stream = gpupool.Stream()
    with pool.lease(stream) as lease:
        assert name_of_handler(pool, lease) == "gpupool.MemPool"
    result = example.check(1)
    assert result.error < 1e-12
    taken = mem_pool.stats()
    print(f"{pool.name}: memory: {taken.allocations} blocks, {taken.peak_live_bytes} bytes at most")
    assert (taken.allocations > 0) == needs_memory(result)
    for seed in range(5):
        assert example.check(seed).error < 1e-12
    # Not six times as much.
    assert mem_pool.stats().reserved_bytes <= 2 * max(taken.reserved_bytes, 2 * MIB)
    wait_for_all_back(pool, mem_pool)
    wait_until(lambda: gpupool.empty_cache() >= 0 and mem_pool.stats().reserved_bytes == 0, "the pages are given back")
    assert gpupool.memory_stats().live_bytes == before


@both
def test_sixteen_threads_take_from_one_pool(pool):
    example, mem_pool = example_of(pool), gpupool.MemPool()
    pool.set_mem_pool(mem_pool)
    results = in_threads_until_returned(pool, 16, example.check)
    assert max(result.error for result in results) < 1e-12
    assert mem_pool.stats().allocations >= 16 * needs_memory(results[0])
    wait_for_all_back(pool, mem_pool)


@both
def test_it_changes_between_calls(pool):
    example, one, two = example_of(pool), gpupool.MemPool(), gpupool.MemPool()
    for mem_pool in (one, two, one):
        pool.set_mem_pool(mem_pool)
        assert example.check(3).error < 1e-12
    pool.set_mem_pool(None)
    # Handles have no handler now, without which both libraries refuse to compute without a workspace.
    with pytest.raises(RuntimeError, match=f"{pool.name}.*: status"):
        example.check(4)
    wait_for_all_back(pool, one, two)
    assert (one.use_count(), two.use_count()) == (1, 1)


@both
def test_a_limit_fails_the_call_and_nothing_else(pool):
    example, mem_pool = example_of(pool), gpupool.MemPool(limit=1024)
    pool.set_mem_pool(gpupool.MemPool())
    if not needs_memory(example.check(1)):
        pytest.skip("the handle's own memory is enough for the example")
    pool.set_mem_pool(mem_pool)
    with pytest.raises(RuntimeError, match=f"{pool.name}.*: status"):
        example.check(1)
    mem_pool.limit = None
    assert example.check(1).error < 1e-12
    wait_for_all_back(pool, mem_pool)


@both
def test_an_owners_handler_is_gone_at_the_next(pool):
    """Either the library takes it off, or the handle is given up: which it is, is printed."""
    stream, discarded = gpupool.Stream(), pool.stats().discarded
    with pool.lease(stream) as lease:
        handle = int(lease)
        assert name_of_handler(pool, handle) is None
        print(f"{pool.name}: no handler, none set: status {set_handler(pool, handle, None)}")
        assert name_of_handler(pool, handle) is None
        assert set_handler(pool, handle, at(gpupool.c_api.handler)) == 0
        assert name_of_handler(pool, handle) == "gpupool"
    with pool.lease(stream) as lease:
        assert name_of_handler(pool, lease) is None
        is_same = int(lease) == handle
    print(f"{pool.name}: an owner's handler: {'taken off' if is_same else 'stays, so the handle is given up'}")
    assert pool.stats().discarded - discarded == (0 if is_same else 1)


@pytest.mark.parametrize("name", ["custatevec", "cutensornet", "cutensor", "cusparselt"])
def test_whether_destroying_waits_for_the_device(name):
    """Printed: gpupool assumes that it does."""
    pool = pool_or_skip(name)
    pool.trim()
    assert pool.warm(1) == 1
    with cupy.cuda.Stream(non_blocking=True) as stream:
        spin(10)
        stream.synchronize()
        spin(10**9)
        assert pool.trim() == 1
        print(f"{name}: destroying a handle: {'waits' if stream.done else 'does not wait'} for the device")
        stream.synchronize()


def test_cuquantum_python_takes_the_handle_of_custatevec():
    pool = pool_or_skip("custatevec")
    custatevec = import_or_skip("cuquantum.bindings.custatevec")
    mem_pool = gpupool.MemPool()
    pool.set_mem_pool(mem_pool)
    with cupy.cuda.Stream(non_blocking=True) as stream, pool.lease(stream) as lease:
        state = cupy.zeros(1 << 16, dtype=np.complex128)
        state[0] = 1
        gate = np.linalg.qr(np.random.default_rng(1).standard_normal((1024, 1024)))[0].astype(np.complex128)
        custatevec.apply_matrix(
            *(int(lease), state.data.ptr, 5, 16, gate.ctypes.data, 5, custatevec.MatrixLayout.ROW, 0),
            *(tuple(range(10)), 10, 0, 0, 0, 0, 0, 0),
        )
        stream.synchronize()
        np.testing.assert_allclose(state[:1024].get(), gate[:, 0], atol=1e-13)
        # The handler is seen there, too.
        assert custatevec.get_device_mem_handler(int(lease))[-1] == "gpupool.MemPool"
    pool.set_mem_pool(None)
    pool.trim()


def test_cuquantum_python_takes_the_handle_of_cutensornet():
    pool = pool_or_skip("cutensornet")
    tensornet = import_or_skip("cuquantum.tensornet")
    random = cupy.random.default_rng(1)
    with cupy.cuda.Stream(non_blocking=True) as stream, pool.lease(stream) as lease:
        a, b = random.standard_normal((32, 48)), random.standard_normal((48, 16))
        options = tensornet.NetworkOptions(handle=int(lease), blocking="auto")
        out = tensornet.contract("ij,jk->ik", a, b, options=options, stream=stream)
        stream.synchronize()
        assert float(abs(out - a @ b).max()) < 1e-11


def test_nvmath_contracts_on_a_leased_handle():
    pool = pool_or_skip("cutensor")
    tensor = import_or_skip("nvmath.tensor")
    random = cupy.random.default_rng(2)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        a, b = random.standard_normal((32, 48, 8)), random.standard_normal((48, 8, 16))
        with (
            gpupool.nvmath.options(gpupool.cutensor, stream) as options,
            tensor.BinaryContraction("ijk,jkl->il", a, b, options=options, stream=stream) as contraction,
        ):
            assert contraction.handle == options["handle"]
            contraction.plan(stream=stream)
            out = contraction.execute(stream=stream)
            stream.synchronize()
        assert float(abs(out - cupy.tensordot(a, b, axes=([1, 2], [0, 1]))).max()) < 1e-11
    assert pool.stats().leased == 0
