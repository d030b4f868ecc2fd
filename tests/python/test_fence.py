"""Fences: later work of a device, or of one stream, waits for all work so far, or for that of blocking streams."""

import gpupool
import pytest
from gpupool import _native


def is_done_when_told_to(stream):
    _native.host_complete(stream, _native.host_submit(stream))
    return stream.query()


def test_later_work_waits_on_every_stream_and_the_host_does_not():
    busy, other, own = gpupool.Stream(), gpupool.Stream(), gpupool.Stream()
    number = _native.host_submit(busy)
    assert is_done_when_told_to(other)
    assert _native.fence(own)
    assert not busy.query()
    assert not is_done_when_told_to(other)
    assert not is_done_when_told_to(own)
    _native.host_complete(busy, number)
    assert is_done_when_told_to(other)
    assert is_done_when_told_to(own)


def test_other_devices_go_on():
    busy, elsewhere = gpupool.Stream(0), gpupool.Stream(1)
    _native.host_submit(busy)
    assert _native.fence(busy)
    assert is_done_when_told_to(elsewhere)
    busy.synchronize()


def test_nothing_waits_where_all_is_done():
    stream = gpupool.Stream()
    assert _native.fence(stream)
    # Refused if it was asked for.
    _native.host_inject("StreamWaitEvent", times=100)
    assert _native.fence(stream)
    assert is_done_when_told_to(stream)


def test_a_driver_that_cannot_record_a_device_is_waited_for():
    _native.host_inject("EventRecordContext", "not_supported", times=100)
    busy, own = gpupool.Stream(), gpupool.Stream()
    _native.host_submit(busy)
    assert _native.fence(own)
    assert busy.query()
    assert is_done_when_told_to(own)


def test_captures_are_left_alone():
    captured, own = gpupool.Stream(), gpupool.Stream()
    _native.host_begin_capture(captured)
    assert not _native.fence(own)
    _native.host_end_capture(captured)
    assert _native.fence(own)


def test_the_capture_of_the_stream_itself_is_left_alone():
    captured = _native.host_create_stream(0)
    _native.host_begin_capture(captured)
    assert not _native.fence(captured)
    # Raises if the capture was spoilt.
    _native.host_end_capture(captured)
    _native.host_destroy_stream(captured)


def test_a_fence_that_is_refused_holds_back_no_stream():
    _native.host_inject("ContextWaitEvent")
    busy, own = gpupool.Stream(), gpupool.Stream()
    number = _native.host_submit(busy)
    with pytest.raises(gpupool.LibraryError, match="ContextWaitEvent"):
        _native.fence(own)
    assert is_done_when_told_to(own)
    _native.host_complete(busy, number)


def test_a_stream_follows_the_default_stream_as_blocking_streams_go_before_it():
    own, other = gpupool.Stream(), gpupool.Stream()
    work = _native.host_submit(1)
    assert _native.follow_blocking(own)
    assert not is_done_when_told_to(own)
    assert is_done_when_told_to(other)
    _native.host_complete(1, work)
    assert is_done_when_told_to(own)
    assert _native.follow_blocking(1)


def test_captures_of_blocking_streams_are_left_alone_and_others_do_not_matter():
    captured, blocking, own = gpupool.Stream(), _native.host_create_stream(0, True), gpupool.Stream()
    _native.host_begin_capture(captured)
    assert (_native.is_captured(captured), _native.is_captured(own), _native.is_captured(1)) == (True, False, False)
    assert not _native.follow_blocking(captured)
    assert _native.follow_blocking(own)
    _native.host_end_capture(captured)
    _native.host_begin_capture(blocking)
    assert not _native.follow_blocking(own)
    # Raises if the capture was spoilt.
    _native.host_end_capture(blocking)
    assert _native.follow_blocking(own)
    _native.host_destroy_stream(blocking)
