"""What a call without a stream does with a buffer whose own stream is another thread's per-thread default stream."""

from concurrent.futures import ThreadPoolExecutor
from ctypes import string_at
from multiprocessing.reduction import ForkingPickler

import gpupool
import pytest
from gpupool import _native

NBYTES = 16
PER_THREAD = 2


class Owner:
    """A thread with a buffer of its own default stream, where work is under way and then a fill with 7."""

    def __init__(self, executor):
        self._executor = executor
        self.buffer = self.call(gpupool.empty, NBYTES, PER_THREAD)
        self.call(self.buffer.fill, 1, PER_THREAD)
        self.call(bytes, self.buffer)
        self._work = self.call(_native.host_submit, PER_THREAD)
        self.call(self.buffer.fill, 7, PER_THREAD)

    def call(self, function, *arguments):
        return self._executor.submit(function, *arguments).result()

    def complete(self):
        """Let the work end."""
        self.call(_native.host_complete, PER_THREAD, self._work)


@pytest.fixture
def owner():
    with ThreadPoolExecutor(1) as executor:
        yield Owner(executor)


def copied_to(host):
    def copy(buffer):
        buffer.copy_to(host)
        return bytes(host)

    return copy


READS = {
    "bytes": bytes,
    "copy_to": copied_to(bytearray(NBYTES)),
    "copy_to pinned memory": lambda buffer: copied_to(gpupool.empty_pinned(NBYTES))(buffer),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_the_other_thread_submitted_is_read(owner, read):
    assert read(owner.buffer) == bytes([7]) * NBYTES


def pinned(content):
    buffer = gpupool.empty_pinned(NBYTES)
    memoryview(buffer)[:] = content
    return buffer


WRITES = {
    "fill": lambda buffer: buffer.fill(9),
    "copy_from": lambda buffer: buffer.copy_from(bytes([9]) * NBYTES),
    "copy_from pinned memory": lambda buffer: buffer.copy_from(pinned(bytes([9]) * NBYTES)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_comes_after_what_the_other_thread_submitted_and_before_what_it_submits_next(owner, write):
    write(owner.buffer)
    assert owner.call(bytes, owner.buffer) == bytes([9]) * NBYTES


def attach_shared(buffer, stream):
    return gpupool.attach(buffer.share(), stream=stream)


def attach_sent(buffer, stream):
    with gpupool.stream(stream):
        return ForkingPickler.loads(ForkingPickler.dumps(buffer))


@pytest.mark.parametrize("attach", [attach_shared, attach_sent])
def test_who_attaches_waits_for_what_the_other_thread_submitted(owner, attach):
    stream = gpupool.Stream()
    attached = attach(owner.buffer, stream)
    attached.fill(9, stream)
    assert not stream.query()
    assert string_at(owner.buffer.ptr, NBYTES) == bytes([1]) * NBYTES
    owner.complete()
    assert bytes(attached) == bytes([9]) * NBYTES


@pytest.mark.parametrize("use", [*READS.values(), *WRITES.values(), gpupool.DeviceBuffer.share])
def test_beside_a_capture_it_is_refused_and_names_what_to_do(owner, use):
    stream = gpupool.Stream()
    _native.host_begin_capture(stream)
    with pytest.raises(gpupool.InvalidValue, match=r"another thread's per-thread default stream.*captured.*name"):
        use(owner.buffer)
    # Raises if the capture was spoilt.
    _native.host_end_capture(stream)
    assert string_at(owner.buffer.ptr, NBYTES) == bytes([1]) * NBYTES
    assert bytes(owner.buffer) == bytes([7]) * NBYTES


def test_a_driver_that_cannot_record_a_device_is_waited_for(owner):
    _native.host_inject("EventRecordContext", "not_supported", times=1)
    owner.buffer.fill(9)
    assert owner.call(bytes, owner.buffer) == bytes([9]) * NBYTES
