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


def test_pinned_memory_is_copied_from(resource):
    pinned = gpupool.rmm.pinned_resource(0)
    data = random.Random(2).randbytes(MIB)
    staging = buffer_of(data, pinned)
    assert gpupool.pinned_stats().live_blocks >= 1
    buffer = rmm.DeviceBuffer(size=MIB, mr=resource)
    buffer.copy_from_device(staging)
    assert buffer.tobytes() == data
