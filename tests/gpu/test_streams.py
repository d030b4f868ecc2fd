"""Every kind of stream reaches the library, on every checkout. The library's own getter is asked."""

import functools

import gpupool
import pytest
from gpu_helpers import (
    BY_STREAM,
    POOLS,
    STREAM_FUNCTIONS,
    cupy,
    import_or_none,
    import_or_skip,
    in_threads,
    pool_or_skip,
    set_stream,
    stream_of,
)


@functools.cache
def lasting_stream():
    return gpupool.Stream()


def cuda_core_stream():
    core = import_or_none("cuda.core")
    if not hasattr(core, "Device"):
        core = import_or_skip("cuda.core.experimental")
    device = core.Device(0)
    device.set_current()
    return device.create_stream()


class Protocol:
    """An object that has nothing but the protocol of cuda.core."""

    def __init__(self):
        self._owner = gpupool.Stream()

    def __cuda_stream__(self):
        return self._owner.__cuda_stream__()


# What makes a stream, and what tells the address that the library must see.
KINDS = {
    "address": (lambda: lasting_stream().ptr, int),
    "legacy_address": (lambda: 0, int),
    "per_thread_address": (lambda: 2, int),
    "cupy_stream": (lambda: cupy.cuda.Stream(), lambda stream: stream.ptr),
    "cupy_non_blocking_stream": (lambda: cupy.cuda.Stream(non_blocking=True), lambda stream: stream.ptr),
    "cupy_null_stream": (lambda: cupy.cuda.Stream.null, lambda stream: 0),
    "cupy_per_thread_stream": (lambda: cupy.cuda.Stream.ptds, lambda stream: 2),
    "torch_stream": (lambda: import_or_skip("torch").cuda.Stream(), lambda stream: stream.cuda_stream),
    "torch_default_stream": (lambda: import_or_skip("torch").cuda.default_stream(), lambda stream: 0),
    "cuda_core_stream": (cuda_core_stream, lambda stream: int(stream.handle)),
    # A ctypes pointer in Numba's own driver bindings, a CUstream in NVIDIA's.
    "numba_stream": (
        lambda: import_or_skip("numba.cuda").stream(),
        lambda stream: int(getattr(stream.handle, "value", stream.handle)),
    ),
    "own_stream": (gpupool.Stream, lambda stream: stream.ptr),
    "protocol_alone": (Protocol, lambda stream: stream.__cuda_stream__()[1]),
}
every_pool = pytest.mark.parametrize("name", STREAM_FUNCTIONS)


@every_pool
@pytest.mark.parametrize("kind", KINDS)
def test_every_checkout_scope_and_thread_has_the_stream(name, kind):
    pool, (make, address_of) = pool_or_skip(name), KINDS[kind]
    stream = make()
    expected, other = address_of(stream), cupy.cuda.Stream(non_blocking=True)
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
    with gpupool.stream(stream) as entered:
        assert entered is stream
        assert stream_of(pool, pool.handle()) == expected
    assert stream_of(pool, pool.handle()) == 0
    assert in_threads(2, lambda _: stream_of(pool, pool.handle(stream))) == [expected, expected]


@pytest.mark.parametrize("name", [name for name in POOLS if name not in STREAM_FUNCTIONS])
@pytest.mark.parametrize("kind", KINDS)
def test_pools_without_a_getter_take_every_kind(name, kind):
    pool, stream = pool_or_skip(name), KINDS[kind][0]()
    assert pool.handle(stream) == pool.handle(stream=stream) != 0


def test_own_streams_work_in_other_frameworks():
    stream = gpupool.Stream()
    assert stream.device == gpupool.current_device()
    assert stream.__cuda_stream__() == (0, stream.ptr)
    with cupy.cuda.Stream.from_external(stream):
        x = cupy.arange(1000.0) * 2
    stream.synchronize()
    assert stream.query()
    assert x.get().sum() == 999_000


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
