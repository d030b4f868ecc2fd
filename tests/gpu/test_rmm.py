"""RMM's memory from gpupool, without Python in a request where there is a module for it."""

import random
import warnings

import gpupool
import pytest
from gpu_helpers import import_or_none, in_threads

MIB = 1 << 20
# None on machines where these tests are skipped.
rmm = import_or_none("rmm")
streams = import_or_none("rmm.pylibrmm.stream")


def buffer_of(data, mr, stream=None):
    """Return a buffer that holds these bytes."""
    stream = stream or streams.DEFAULT_STREAM
    buffer = rmm.DeviceBuffer(size=len(data), stream=stream, mr=mr)
    buffer.copy_from_host(data, stream=stream)
    return buffer


@pytest.fixture
def resource():
    """Return the resource in C++, or skip the test where there is no module for this RMM."""
    if rmm is None:
        pytest.skip("needs rmm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        made = gpupool.rmm.resource(0)
    if isinstance(made, rmm.mr.CallbackMemoryResource):
        pytest.skip("needs a module for this RMM")
    return made


def live():
    return gpupool.memory_stats(0).live_blocks


def test_buffers_hold_what_is_copied(resource):
    before = live()
    data = random.Random(1).randbytes(3 * MIB)
    buffer = buffer_of(data, resource)
    assert gpupool.memory_stats(0).live_blocks == before + 1
    assert buffer.tobytes() == data
    del buffer
    assert live() == before


def test_sixteen_threads_on_streams_of_their_own(resource):
    before = live()

    def work(number):
        stream, numbers, held = streams.Stream(), random.Random(number), []
        for _ in range(300):
            if held and (len(held) > 20 or numbers.random() < 0.4):
                data, buffer = held.pop(numbers.randrange(len(held)))
                assert buffer.tobytes(stream=stream) == data
            else:
                data = numbers.randbytes(numbers.randrange(1, MIB))
                held.append((data, buffer_of(data, resource, stream)))
        assert all(buffer.tobytes(stream=stream) == data for data, buffer in held)
        stream.synchronize()

    in_threads(16, work)
    gpupool.empty_cache()
    assert live() == before


def test_rmms_own_stand_on_it(resource):
    before = live()
    statistics = rmm.mr.StatisticsResourceAdaptor(resource)
    pool = rmm.mr.PoolMemoryResource(statistics, initial_pool_size=64 * MIB)
    data = bytes(range(256)) * 100
    assert buffer_of(data, pool).tobytes() == data
    assert live() > before
    del pool, statistics
    gpupool.empty_cache()
    assert live() == before


def test_out_of_memory_has_gpupools_text(resource):
    with pytest.raises(MemoryError, match="tried to allocate"):
        rmm.DeviceBuffer(size=1 << 50, mr=resource)


def test_scopes_and_the_end_of_a_use_with_buffers_alive(resource):
    pool, former = gpupool.MemPool(device=0), rmm.mr.get_per_device_resource(0)
    gpupool.rmm.enable()
    try:
        with gpupool.use_mem_pool(pool):
            buffer = buffer_of(b"kept", None)
    finally:
        gpupool.rmm.disable()
    assert rmm.mr.get_per_device_resource(0) is former
    assert pool.stats().live_blocks == 1
    assert buffer.tobytes() == b"kept"
    del buffer
    assert pool.stats().live_blocks == 0


def test_pinned_memory_is_copied_from(resource):
    pinned = gpupool.rmm.pinned_resource(0)
    data = random.Random(2).randbytes(MIB)
    staging = buffer_of(data, pinned)
    assert gpupool.pinned_stats().live_blocks >= 1
    buffer = rmm.DeviceBuffer(size=MIB, mr=resource)
    buffer.copy_from_device(staging)
    assert buffer.tobytes() == data
