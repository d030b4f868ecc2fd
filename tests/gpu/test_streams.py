"""Every kind of stream reaches the library, on every checkout. The library's own getter is asked."""

import gpupool
import pytest
from gpu_helpers import (
    BY_STREAM,
    STREAM_FUNCTIONS,
    cupy,
    import_or_none,
    import_or_skip,
    in_threads,
    pool_or_skip,
    set_stream,
    stream_of,
)


def address():
    owner = cupy.cuda.Stream(non_blocking=True)
    return owner.ptr, owner.ptr, owner


def legacy_address():
    return 0, 0, None


def per_thread_address():
    return 2, 2, None


def cupy_stream():
    stream = cupy.cuda.Stream()
    return stream, stream.ptr, stream


def cupy_non_blocking_stream():
    stream = cupy.cuda.Stream(non_blocking=True)
    return stream, stream.ptr, stream


def cupy_null_stream():
    return cupy.cuda.Stream.null, 0, None


def cupy_per_thread_stream():
    return cupy.cuda.Stream.ptds, 2, None


def torch_stream():
    torch = import_or_skip("torch")
    stream = torch.cuda.Stream()
    return stream, stream.cuda_stream, stream


def torch_default_stream():
    torch = import_or_skip("torch")
    return torch.cuda.default_stream(), 0, None


def cuda_core_stream():
    core = import_or_none("cuda.core")
    if not hasattr(core, "Device"):
        core = import_or_skip("cuda.core.experimental")
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    return stream, int(stream.handle), stream


def numba_stream():
    cuda = import_or_skip("numba.cuda")
    stream = cuda.stream()
    # A ctypes pointer in Numba's own driver bindings, a CUstream in NVIDIA's.
    return stream, int(getattr(stream.handle, "value", stream.handle)), stream


def own_stream():
    stream = gpupool.Stream()
    return stream, stream.ptr, stream


def protocol_alone():
    """Return an object that has nothing but the protocol of cuda.core."""
    owner = gpupool.Stream()

    class Protocol:
        def __cuda_stream__(self):
            return 0, owner.ptr

    return Protocol(), owner.ptr, owner


# Each returns a stream, the address that the library must see, and whatever keeps the stream alive.
KINDS = [
    address,
    legacy_address,
    per_thread_address,
    cupy_stream,
    cupy_non_blocking_stream,
    cupy_null_stream,
    cupy_per_thread_stream,
    torch_stream,
    torch_default_stream,
    cuda_core_stream,
    numba_stream,
    own_stream,
    protocol_alone,
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
every_pool = pytest.mark.parametrize("name", STREAM_FUNCTIONS)


@every_pool
@every_kind
def test_every_checkout_sets_the_stream(name, kind):
    pool = pool_or_skip(name)
    stream, expected, _owner = kind()
    other = cupy.cuda.Stream(non_blocking=True)
    handle = pool.handle(stream)
    assert stream_of(pool, handle) == expected
    # Other code changes it, and the next checkout sets it right.
    for _ in range(2):
        set_stream(pool, handle, other.ptr)
        assert pool.handle(stream) == handle
        assert stream_of(pool, handle) == expected
    # A hit that has nothing to set.
    assert pool.handle(stream) == handle
    assert stream_of(pool, handle) == expected


@every_pool
@every_kind
def test_scopes_set_the_stream(name, kind):
    pool = pool_or_skip(name)
    stream, expected, _owner = kind()
    with gpupool.stream(stream) as entered:
        assert entered is stream
        assert stream_of(pool, pool.handle()) == expected
    assert stream_of(pool, pool.handle()) == 0


@every_pool
@every_kind
def test_a_new_thread_gets_the_stream(name, kind):
    pool = pool_or_skip(name)
    stream, expected, _owner = kind()
    assert in_threads(2, lambda _: stream_of(pool, pool.handle(stream))) == [expected, expected]


@pytest.mark.parametrize("name", ["cudss", "cublaslt", "cutensornet", "cutensor", "cusparselt"])
@every_kind
def test_pools_without_a_getter_take_every_kind(name, kind):
    pool = pool_or_skip(name)
    stream, _, _owner = kind()
    assert pool.handle(stream) == pool.handle(stream=stream) != 0


@every_pool
def test_scopes_nest_and_belong_to_a_thread(name):
    pool = pool_or_skip(name)
    outer, inner, explicit = gpupool.Stream(), gpupool.Stream(), gpupool.Stream()
    with gpupool.stream(outer):
        with gpupool.stream(inner):
            assert stream_of(pool, pool.handle()) == inner.ptr
            assert stream_of(pool, pool.handle(explicit)) == explicit.ptr
            assert stream_of(pool, pool.handle()) == inner.ptr
            assert in_threads(1, lambda _: stream_of(pool, pool.handle())) == [0]
        assert stream_of(pool, pool.handle()) == outer.ptr
    assert stream_of(pool, pool.handle()) == 0


def test_a_scope_ends_with_an_error():
    stream = gpupool.Stream()
    with pytest.raises(ZeroDivisionError), gpupool.stream(stream):
        raise ZeroDivisionError
    assert stream_of(gpupool.cublas, gpupool.cublas.handle()) == 0


@every_pool
def test_every_thread_has_its_own_stream(name):
    pool = pool_or_skip(name)

    def work(_):
        stream = gpupool.Stream()
        seen = {stream_of(pool, pool.handle(stream)) for _ in range(100)}
        return seen == {stream.ptr}

    assert in_threads(8, work) == [True] * 8


def test_own_streams_work_in_other_frameworks():
    stream = gpupool.Stream()
    assert stream.device == gpupool.current_device()
    assert stream.__cuda_stream__() == (0, stream.ptr)
    with cupy.cuda.Stream.from_external(stream):
        x = cupy.arange(1000.0) * 2
    stream.synchronize()
    assert stream.query()
    assert x.get().sum() == 999_000


@pytest.mark.parametrize("device", [-1, 1000])
def test_refuses_a_device_that_is_not_there(device):
    with pytest.raises(gpupool.InvalidValue):
        gpupool.cublas.handle(device=device)
    with pytest.raises(gpupool.InvalidValue):
        gpupool.cublas.handle(cupy.cuda.Stream.null, device)
    with pytest.raises(gpupool.InvalidValue):
        gpupool.Stream(device)


def test_refuses_the_first_device_that_is_not_there():
    assert gpupool.cublas.handle(device=gpupool.device_count() - 1) != 0
    with pytest.raises(gpupool.InvalidValue):
        gpupool.cublas.handle(device=gpupool.device_count())


def test_refuses_what_is_no_stream():
    with pytest.raises(gpupool.InvalidValue):
        gpupool.cublas.handle("stream")


@every_pool
def test_each_device_has_its_own_handle(name):
    pool = pool_or_skip(name)
    if gpupool.device_count() < 2:
        pytest.skip("needs two devices")
    with cupy.cuda.Device(1):
        stream = cupy.cuda.Stream(non_blocking=True)
    handle = pool.handle(stream)
    assert stream_of(pool, handle) == stream.ptr
    assert pool.handle(device=1) != pool.handle(device=0)
    assert (handle == pool.handle(device=1)) == (name not in BY_STREAM)
    assert gpupool.current_device() == cupy.cuda.runtime.getDevice() == 0
    with pytest.raises(gpupool.InvalidValue):
        pool.handle(stream, device=0)
