"""Leases of every library's handles: streams, hand-over, limits, and captures that go on meanwhile."""

import ctypes

import gpupool
import pytest
from gpu_helpers import BY_STREAM, POOLS, STREAM_FUNCTIONS, cupy, in_threads, pool_or_skip, run_program, stream_of
from long_kernel import LongKernel


@pytest.mark.parametrize("name", POOLS)
def test_a_lease_has_its_stream_and_goes_to_the_next(name):
    pool = pool_or_skip(name)
    pool.trim()
    first, second = gpupool.Stream(), gpupool.Stream()
    with pool.lease(first) as lease:
        handle = int(lease)
        if name in STREAM_FUNCTIONS:
            assert stream_of(pool, handle) == first.ptr
    created = pool.stats().created
    with pool.lease(second) as lease:
        assert int(lease) == handle
        if name in STREAM_FUNCTIONS:
            assert stream_of(pool, handle) == second.ptr
    assert (pool.stats().created, pool.stats().leased) == (created, 0)


# Of cuBLAS and cuSOLVER, where they are new enough.
EMULATION = [
    ("EmulationStrategy", 2, 0),
    ("EmulationSpecialValuesSupport", 0, 0xFFFF),
    ("FixedPointEmulationMantissaControl", 1, 0),
    ("FixedPointEmulationMaxMantissaBitCount", 55, 0),
    ("FixedPointEmulationMantissaBitOffset", -8, 0),
]

# What an owner may change, by the functions that set and get it, and what a new handle has.
CHANGES = [
    ("cublas", "cublasSetPointerMode_v2", "cublasGetPointerMode_v2", 1, 0),
    ("cublas", "cublasSetAtomicsMode", "cublasGetAtomicsMode", 1, 0),
    ("cublas", "cublasSetMathMode", "cublasGetMathMode", 3, 0),
    ("cublas", "cublasSetSmCountTarget", "cublasGetSmCountTarget", 8, 0),
    ("cusparse", "cusparseSetPointerMode", "cusparseGetPointerMode", 1, 0),
    ("cusolver", "cusolverDnSetDeterministicMode", "cusolverDnGetDeterministicMode", 2, 1),
    ("cusolver", "cusolverDnSetMathMode", "cusolverDnGetMathMode", 2, 1),
    ("custatevec", "custatevecSetMathMode", "custatevecGetMathMode", 2, 0),
    *(("cublas", f"cublasSet{what}", f"cublasGet{what}", changed, new) for what, changed, new in EMULATION),
    *(("cusolver", f"cusolverDnSet{what}", f"cusolverDnGet{what}", changed, new) for what, changed, new in EMULATION),
]


@pytest.mark.parametrize(("name", "setter", "getter", "changed", "new"), CHANGES)
def test_what_an_owner_changed_is_set_back_for_the_next(name, setter, getter, changed, new):
    pool = pool_or_skip(name)
    pool.trim()
    library, stream = ctypes.CDLL(pool.path), gpupool.Stream()
    if not hasattr(library, setter):
        pytest.skip(f"{name} {pool.version} has no {setter}")

    def get(handle):
        value = ctypes.c_int(-1)
        assert getattr(library, getter)(ctypes.c_void_p(handle), ctypes.byref(value)) == 0
        return value.value

    with pool.lease(stream) as lease:
        handle = int(lease)
        assert get(handle) == new
        assert getattr(library, setter)(ctypes.c_void_p(handle), changed) == 0
        assert get(handle) == changed
    with pool.lease(stream) as lease:
        assert (int(lease), get(handle)) == (handle, new)
        getattr(library, setter)(ctypes.c_void_p(handle), changed)
    # A thread's window gets it as new, too.
    (found,) = in_threads(1, lambda _: (pool.handle(stream), get(pool.handle(stream))))
    assert found == (handle, new)


@pytest.mark.parametrize("kind", ["Device", "Pinned"])
def test_a_handler_of_cudss_that_an_owner_set_is_taken_off(kind):
    pool = pool_or_skip("cudss")
    pool.trim()
    library, stream = ctypes.CDLL(pool.path), gpupool.Stream()
    if not hasattr(library, f"cudssSet{kind}MemHandler"):
        pytest.skip(f"cuDSS {pool.version} has no handler of this")
    set_handler, get_handler = library[f"cudssSet{kind}MemHandler"], library[f"cudssGet{kind}MemHandler"]
    told = ctypes.create_string_buffer(88)
    with pool.lease(stream) as lease:
        handle = ctypes.c_void_p(int(lease))
        assert get_handler(handle, told) != 0, "a new handle has one"
        assert set_handler(handle, ctypes.c_void_p(gpupool.c_api.handler)) == 0
        assert get_handler(handle, told) == 0
    with pool.lease(stream) as lease:
        assert int(lease) == handle.value
        assert get_handler(handle, told) != 0, "the last owner's is there"


@pytest.mark.parametrize("name", [name for name in POOLS if name not in BY_STREAM])
def test_a_hand_over_waits_for_no_work_of_the_former_stream(name):
    pool = pool_or_skip(name)
    pool.trim()
    first, second, kernel = gpupool.Stream(), gpupool.Stream(), LongKernel()
    with pool.lease(first) as lease:
        handle = int(lease)
    with cupy.cuda.ExternalStream(first.ptr):
        kernel.begin()
    with pool.lease(second) as lease:
        assert int(lease) == handle
    waits, is_busy = not second.query(), not first.query()
    kernel.end()
    first.synchronize()
    second.synchronize()
    assert (waits, is_busy) == (False, True)


@pytest.mark.parametrize("mode", ["Global", "ThreadLocal", "Relaxed"])
def test_a_capture_survives_first_handles_leases_and_trims_in_many_threads(mode):
    names = [name for name in POOLS if getattr(gpupool, name).available]
    run_program("captures/handles.py", "many_threads_ask_for_them", ",".join(names), mode)


@pytest.mark.parametrize("name", POOLS)
def test_hand_overs_spoil_no_capture_of_somebody_else(name):
    pool_or_skip(name)
    run_program("captures/handles.py", "they_are_handed_over", name)


@pytest.mark.parametrize("name", POOLS)
def test_threads_that_alternate_devices_get_each_ones_handles(name):
    pool = pool_or_skip(name)
    if gpupool.device_count() < 2:
        pytest.skip("needs two GPUs")
    streams = [gpupool.Stream(device) for device in range(2)]
    before, handles = cupy.cuda.runtime.getDevice(), [set(), set()]

    def work(number):
        own = [pool.handle(stream) for stream in streams]
        for turn in range(200):
            device = (number + turn) % 2
            with pool.lease(streams[device]) as lease:
                assert (lease.device, pool.handle(streams[device])) == (device, own[device])
                handles[device].add(int(lease))
                if name in STREAM_FUNCTIONS:
                    assert stream_of(pool, int(lease)) == streams[device].ptr
        return cupy.cuda.runtime.getDevice()

    # The caller's device stays current, and no handle is ever on the other one.
    assert in_threads(8, work) == [before] * 8
    assert handles[0].isdisjoint(handles[1]) or name == "cublaslt"
    stats = [pool.stats(device) for device in range(2)]
    assert [each.leased for each in stats] == [0, 0]
    assert pool.stats().created == sum(each.created for each in stats)
