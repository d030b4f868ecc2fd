"""Threads share handles of the real libraries, and the libraries are the copies that everybody else uses."""

import ctypes
import importlib.metadata
from pathlib import Path

import gpupool
import pytest
from gpu_helpers import (
    POOLS,
    cupy,
    import_or_skip,
    in_threads_until_returned,
    pool_or_skip,
    run_program,
    stream_of,
)
from waiting import wait_until

pytestmark = pytest.mark.device_memory(gib=3)

# The file's stem, and the wheel that brings it.
FILES = {
    "cudnn": ("libcudnn", "nvidia-cudnn-cu13"),
    "cusparse": ("libcusparse", "nvidia-cusparse"),
    "cudss": ("libcudss", "nvidia-cudss-cu13"),
    "cublas": ("libcublas", "nvidia-cublas"),
    "cublaslt": ("libcublasLt", "nvidia-cublas"),
    "cusolver": ("libcusolver", "nvidia-cusolver"),
    "custatevec": ("libcustatevec", "custatevec-cu13"),
    "cutensornet": ("libcutensornet", "cutensornet-cu13"),
    "cutensor": ("libcutensor", "cutensor-cu13"),
    "cusparselt": ("libcusparseLt", "nvidia-cusparselt-cu13"),
}
every_pool = pytest.mark.parametrize("name", POOLS)


@every_pool
def test_a_thread_keeps_its_handle_and_leaves_it_to_later_ones(name):
    pool = pool_or_skip(name)
    pool.trim()
    ours = pool.handle()
    before = pool.stats()
    assert {pool.handle() for _ in range(100)} == {ours}
    after = pool.stats()
    assert after.hits - before.hits == 100
    assert (after.created, after.misses) == (before.created, before.misses)
    earlier = in_threads_until_returned(pool, 8, lambda _: pool.handle())
    # cuBLASLt's handles are stateless: the library answers the same address to all.
    assert len({ours, *earlier}) == (1 if name == "cublaslt" else 9)
    before = pool.stats()
    later = in_threads_until_returned(pool, 8, lambda _: pool.handle())
    after = pool.stats()
    assert sorted(later) == sorted(earlier)
    assert after.created == before.created
    assert after.hand_overs == before.hand_overs + 8
    assert pool.handle() == ours


@every_pool
def test_warm_and_trim(name):
    pool = pool_or_skip(name)
    pool.trim()
    before = pool.stats()
    assert before.idle == 0
    assert pool.warm(2) == 2
    assert pool.warm(2) == 0
    assert pool.stats().idle == 2
    in_threads_until_returned(pool, 2, lambda _: pool.handle())
    after = pool.stats()
    assert after.created == before.created + 2
    assert after.hand_overs == before.hand_overs + 2
    assert after.create_seconds > before.create_seconds
    assert pool.trim() == 2
    assert pool.stats().destroyed == before.destroyed + 2
    # Warming in the background fills the pool too.
    pool.warm(1, background=True)
    wait_until(lambda: pool.stats().idle == 1, "the handle was made in the background")


@every_pool
def test_path_and_version(name):
    pool = pool_or_skip(name)
    assert pool.name == name
    stem, package = FILES[name]
    path = Path(pool.path)
    assert path.is_absolute()
    assert path.is_file()
    assert path.name.startswith(f"{stem}.so.")
    assert len(pool.version) == 3
    # The file's name carries the major version.
    assert pool.version[0] == int(path.name.split(".so.")[1].split(".")[0])
    try:
        wheel = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{path} is not from a wheel")
    # The wheel of cuTENSOR 2.8.0 is 2.8.1.
    parts = 2 if name == "cutensor" else 3
    assert pool.version[:parts] == tuple(map(int, wheel.version.split(".")[:parts]))
    assert path in [Path(file.locate()).resolve() for file in wheel.files or []]


def test_torch_sees_the_same_cudnn():
    torch = import_or_skip("torch")
    major, minor, patch = pool_or_skip("cudnn").version
    assert torch.backends.cudnn.version() == major * 10_000 + minor * 100 + patch


@pytest.mark.thorough
@pytest.mark.parametrize("order", ["gpupool-cupy-torch", "cupy-torch-gpupool", "torch-gpupool-cupy"])
def test_one_copy_of_each_library(order):
    import_or_skip("torch")
    files = [f"{name}={FILES[name][0]}" for name in POOLS if getattr(gpupool, name).available]
    run_program("frameworks/copies_of_libraries.py", order, *files)


def test_a_product_of_cusparse_beside_cupys_own():
    pool_or_skip("cusparse")
    import_or_skip("scipy")
    run_program("frameworks/spmv_by_ctypes.py")


def current_context():
    """Return the address of the calling thread's CUDA context, None without one."""
    context = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value


@every_pool
def test_a_thread_without_a_context_stays_without_one(name):
    pool = pool_or_skip(name)

    def work(_):
        assert current_context() is None
        assert pool.handle() != 0
        return current_context()

    pool.trim()
    # The second time the handle is there already.
    assert in_threads_until_returned(pool, 1, work) == [None]
    assert in_threads_until_returned(pool, 1, work) == [None]


@every_pool
def test_a_threads_context_stays_current(name):
    pool = pool_or_skip(name)

    def work(_):
        cupy.cuda.Device(0).use()
        before = current_context()
        assert before is not None
        assert pool.handle() != 0
        assert current_context() == before
        assert pool.handle(gpupool.Stream()) != 0
        assert current_context() == before

    pool.trim()
    in_threads_until_returned(pool, 1, work)


@every_pool
def test_a_context_that_is_not_the_devices_own_stays_current(name):
    pool = pool_or_skip(name)
    driver = ctypes.CDLL("libcuda.so.1")

    def work(_):
        context = ctypes.c_void_p()
        assert driver.cuCtxCreate_v2(ctypes.byref(context), ctypes.c_uint(0), ctypes.c_int(0)) == 0
        assert pool.handle(device=0) != 0
        assert current_context() == context.value
        assert driver.cuCtxDestroy_v2(context) == 0

    pool.trim()
    in_threads_until_returned(pool, 1, work)


def test_a_pool_of_ones_own():
    library = ctypes.CDLL(gpupool.cublas.path)
    addresses = [
        ctypes.cast(function, ctypes.c_void_p).value
        for function in (library.cublasCreate_v2, library.cublasDestroy_v2, library.cublasSetStream_v2)
    ]
    pool = gpupool.HandlePool("my cuBLAS", *addresses)
    stream = gpupool.Stream()
    handle = pool.handle(stream)
    assert stream_of(gpupool.cublas, handle) == stream.ptr
    assert pool.handle() == handle
    assert stream_of(gpupool.cublas, handle) == 0
    earlier = in_threads_until_returned(pool, 2, lambda _: pool.handle(stream))
    later = in_threads_until_returned(pool, 2, lambda _: pool.handle(stream))
    assert handle not in earlier
    assert sorted(later) == sorted(earlier)
    assert pool.stats().created == 3
    assert pool.close() == 3
    with pytest.raises(gpupool.Error):
        pool.handle()
