"""Bytes between device memory and the host, on simulated devices: copies, fills, and what they refuse."""

import array
import ctypes

import gpupool
import numpy as np
import pytest
from gpupool import _native

MIB = 1 << 20


@pytest.fixture
def stream():
    return gpupool.Stream()


@pytest.mark.parametrize("nbytes", [0, 1, 511, 70_001, 3 * MIB])
def test_bytes_go_there_and_back(nbytes, stream):
    buffer = gpupool.empty(nbytes, stream)
    content = bytes(number % 251 for number in range(nbytes))
    buffer.copy_from(content)
    read = bytearray(nbytes)
    buffer.copy_to(read)
    assert (bytes(buffer), bytes(read), len(buffer)) == (content, content, nbytes)


HOSTS = {
    "bytes": lambda: bytes(range(8)),
    "bytearray": lambda: bytearray(range(8)),
    "memoryview": lambda: memoryview(bytearray(range(16)))[8:],
    "array": lambda: array.array("d", [1.5]),
    "ctypes": lambda: (ctypes.c_int * 2)(3, 4),
    "numpy": lambda: np.arange(4, dtype=np.int16).reshape(2, 2),
    "a number of numpy": lambda: np.array(2.5),
    "pinned": lambda: gpupool.empty_pinned(8),
}


@pytest.mark.parametrize("make", HOSTS.values(), ids=HOSTS)
def test_whatever_has_bytes_is_copied(make, stream):
    host, buffer = make(), gpupool.empty(8, stream)
    content = bytes(host)
    buffer.copy_from(host)
    assert bytes(buffer) == content
    if not memoryview(host).readonly:
        buffer.fill(9)
        buffer.copy_to(host)
        stream.synchronize()
        assert bytes(host) == bytes([9]) * 8


def test_a_fill_is_of_one_byte(stream):
    buffer = gpupool.empty(5, stream)
    buffer.fill(0xFF)
    assert bytes(buffer) == b"\xff" * 5
    for wrong in (256, -1, 2**64, True):
        with pytest.raises(gpupool.InvalidValue):
            buffer.fill(wrong)
    with pytest.raises(TypeError):
        buffer.fill(b"\0")
    assert bytes(buffer) == b"\xff" * 5


def test_pinned_memory_and_parts_of_it_are_copied_in_stream_order_without_a_wait(stream):
    work = _native.host_submit(stream)
    buffer, pinned = gpupool.empty(4, stream), gpupool.empty_pinned(12)
    view = np.frombuffer(pinned, np.uint8)
    memoryview(pinned)[:] = b"0123abcd4567"
    whole = gpupool.empty_pinned(4)
    for host in (whole, memoryview(whole), view[4:8].reshape(2, 2), memoryview(pinned)[4:8]):
        buffer.copy_from(host)
        buffer.copy_to(host)
    buffer.copy_to(view[8:])
    assert not stream.query()
    # What the stream copies is what is there when its turn comes.
    view[4:8] = list(b"wxyz")
    _native.host_complete(stream, work)
    assert stream.query()
    assert bytes(pinned) == b"0123wxyzwxyz"


def test_a_buffer_copied_on_another_stream_waits_for_it_once_freed(stream):
    other = gpupool.Stream()
    buffer = gpupool.empty(4 * MIB, stream)
    work = _native.host_submit(other)
    buffer.fill(1, other)
    address = buffer.ptr
    buffer.free()
    kept = gpupool.empty(4 * MIB, stream)
    assert kept.ptr != address
    _native.host_complete(other, work)


def test_sizes_must_agree(stream):
    buffer = gpupool.empty(4, stream)
    for host in (b"abc", b"abcde", b""):
        with pytest.raises(gpupool.InvalidValue, match=f"has 4 bytes and the host's memory has {len(host)}"):
            buffer.copy_from(host)
        with pytest.raises(gpupool.InvalidValue, match="memory of the same size"):
            buffer.copy_to(bytearray(host))


def test_memory_with_gaps_is_refused(stream):
    buffer = gpupool.empty(4, stream)
    for host in (np.zeros(8, np.uint8)[::2], np.zeros((2, 2), np.uint8, order="F")[:, ::-1]):
        with pytest.raises(gpupool.InvalidValue, match=r"contiguous memory in C order.*ascontiguousarray"):
            buffer.copy_from(host)
        with pytest.raises(gpupool.InvalidValue, match=r"copy_to\(\) needs contiguous memory"):
            buffer.copy_to(host)


def test_read_only_memory_is_no_target(stream):
    buffer = gpupool.empty(4, stream)
    fixed = np.zeros(4, np.uint8)
    fixed.flags.writeable = False
    for host in (b"abcd", fixed):
        with pytest.raises(gpupool.InvalidValue, match=r"is read-only: give a bytearray.*bytes\(buffer\)"):
            buffer.copy_to(host)


@pytest.mark.parametrize("host", [7, "text", [1, 2], None, object()])
def test_what_has_no_bytes_is_refused(host, stream):
    buffer = gpupool.empty(4, stream)
    with pytest.raises(TypeError, match=rf"copy_from\(\) takes host memory.*not {type(host).__name__}.*numpy\(\)"):
        buffer.copy_from(host)
    with pytest.raises(TypeError, match=r"copy_to\(\) takes host memory"):
        buffer.copy_to(host)


def test_objects_of_python_are_no_bytes(stream):
    buffer = gpupool.empty(8, stream)
    with pytest.raises(TypeError, match="holds Python objects"):
        buffer.copy_to(np.array([None]))


def test_a_buffer_of_a_device_is_no_memory_of_the_host(stream):
    with pytest.raises(TypeError, match="not DeviceBuffer"):
        gpupool.empty(4, stream).copy_from(gpupool.empty(4, stream))


def test_a_freed_buffer_is_neither_read_nor_written(stream):
    buffer, pinned = gpupool.empty(4, stream), gpupool.empty_pinned(4)
    buffer.free()
    for call in (
        lambda: buffer.copy_from(b"abcd"),
        lambda: buffer.copy_to(bytearray(4)),
        lambda: buffer.fill(0),
        lambda: bytes(buffer),
        lambda: len(buffer),
    ):
        with pytest.raises(gpupool.InvalidValue, match="was freed"):
            call()
    pinned.free()
    with pytest.raises(TypeError, match="was freed"):
        gpupool.empty(4, stream).copy_from(pinned)
    with pytest.raises(gpupool.InvalidValue, match="was freed"):
        len(pinned)


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("CopyToDevice", lambda buffer: buffer.copy_from(b"abcd")),
        ("CopyToHost", lambda buffer: buffer.copy_to(bytearray(4))),
        ("CopyToHost", bytes),
        ("Fill", lambda buffer: buffer.fill(0)),
        ("StreamSynchronize", bytes),
    ],
)
def test_what_the_driver_refuses_is_told_and_leaves_the_buffer(call, action, stream):
    buffer = gpupool.empty(4, stream)
    buffer.copy_from(b"abcd")
    _native.host_inject(call)
    with pytest.raises(gpupool.LibraryError, match=r"HOST_ERROR_INJECTED \(999\) on device 0"):
        action(buffer)
    assert bytes(buffer) == b"abcd"


def test_memory_of_an_allocator_of_ones_own_is_not_touched_where_there_is_none(stream):
    pool = gpupool.MemPool((lambda size, device, stream: 0x7000_0000_0000, lambda *arguments: None))
    with pytest.raises(gpupool.LibraryError, match="is not memory that device 0 has access to"):
        pool.empty(4, stream).fill(0)


def test_numpy_is_told_how_to_read_a_buffer(stream):
    buffer = gpupool.empty(4, stream)
    for call in (np.asarray, np.array, lambda buffer: np.asarray(buffer, dtype=np.uint8)):
        with pytest.raises(TypeError, match=r"numpy\.frombuffer\(bytes\(buffer\), dtype\)"):
            call(buffer)
    buffer.copy_from(np.array([1.5], np.float32))
    assert np.frombuffer(bytes(buffer), np.float32) == [1.5]


def test_a_device_is_waited_for(stream):
    streams = [stream, gpupool.Stream(), gpupool.Stream(1)]
    for each in streams:
        _native.host_submit(each)
    gpupool.synchronize()
    assert [each.query() for each in streams] == [True, True, False]
    gpupool.synchronize(1)
    assert streams[2].query()
    _native.host_inject("ContextSynchronize")
    with pytest.raises(gpupool.LibraryError, match="on device 0"):
        gpupool.synchronize()


def test_a_buffer_that_is_asleep_is_neither_read_nor_written(stream):
    pool = gpupool.MemPool()
    buffer = pool.empty(4, stream)
    buffer.copy_from(b"abcd")
    pool.sleep()
    assert "asleep" in repr(pool)
    for call in (lambda: buffer.copy_from(b"wxyz"), lambda: buffer.copy_to(bytearray(4)), lambda: buffer.fill(0)):
        with pytest.raises(gpupool.Asleep, match="wake it first"):
            call()
    pool.wake()
    assert bytes(buffer) == b"abcd"
