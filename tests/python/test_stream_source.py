"""Whoever names the thread's current stream where no `gpupool.stream` does: a framework that was enabled."""

import gpupool
import pytest
from gpupool import _native
from gpupool._frameworks import plug as _plug


@pytest.fixture
def source():
    """Return what sets the source, and take it away again."""
    yield _native.set_stream_source
    _native.set_stream_source(None)


def stream_of_handle(**device):
    return _native.host_stream_of(gpupool.simulated.handle(**device))


def test_handles_leases_and_memory_follow_it(source):
    stream = gpupool.Stream()
    assert source(lambda device: stream.ptr) is None
    assert stream_of_handle() == stream.ptr
    assert gpupool.empty(64).stream == stream.ptr
    with gpupool.simulated.lease() as lease:
        assert _native.host_stream_of(int(lease)) == stream.ptr


def test_a_stream_of_the_call_or_of_a_scope_comes_first(source):
    asked, own = [], gpupool.Stream()
    source(lambda device: asked.append(device) or 0)
    assert gpupool.empty(64, own).stream == own.ptr
    with gpupool.stream(own):
        assert gpupool.empty(64).stream == own.ptr
    assert asked == []
    # It is asked for the device that is meant.
    gpupool.empty(64)
    gpupool.simulated.handle()
    assert asked == [0, 0]


def test_a_scope_of_the_default_stream_comes_first_too(source):
    other = gpupool.Stream()
    source(lambda device: other.ptr)
    with gpupool.stream(0):
        assert gpupool.empty(64).stream == 0
    assert gpupool.empty(64).stream == other.ptr


def test_the_former_one_comes_back(source):
    def first(device):
        return 0

    def second(device):
        return 0

    assert (source(first), source(second), source(None), source(None)) == (None, first, second, None)


def test_what_it_raises_is_raised(source):
    def fail(device):
        raise RuntimeError("no stream today")

    source(fail)
    with pytest.raises(RuntimeError, match="no stream today"):
        gpupool.empty(64)


@pytest.mark.parametrize("answer", [None, "0", -1, 1 << 70, True])
def test_an_answer_that_is_no_address_is_refused(source, answer):
    source(lambda device: answer)
    with pytest.raises(gpupool.InvalidValue, match="not the address of a stream"):
        gpupool.empty(64)


def test_a_framework_that_is_missing_or_too_old_is_named_with_what_mends_it(tmp_path, monkeypatch):
    (tmp_path / "old_framework.py").write_text('__version__ = "1.9.3+cu13"\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert _plug.require("old_framework", (1, 9), "old-framework").__version__ == "1.9.3+cu13"
    with pytest.raises(
        gpupool.LibraryNotFound, match=r"1\.9\.3\+cu13 is too old: .* pip install 'old-framework>=1.10'"
    ):
        _plug.require("old_framework", (1, 10), "old-framework")
    with pytest.raises(gpupool.LibraryNotFound, match=r"no_such_framework cannot be imported: .* pip install"):
        _plug.require("no_such_framework", (1,), "no-such-framework")


def test_the_framework_enabled_last_counts_and_the_one_before_comes_back(source):
    streams = [gpupool.Stream() for _ in range(3)]
    first, second, third = ((lambda device, stream=stream: stream.ptr) for stream in streams)
    for function in (first, second, third, first):
        _plug.follow(function)
    assert gpupool.empty(64).stream == streams[0].ptr
    _plug.unfollow(second)
    _plug.unfollow(first)
    assert gpupool.empty(64).stream == streams[2].ptr
    _plug.unfollow(third)
    _plug.unfollow(third)
    assert gpupool.empty(64).stream == 0


def test_a_name_that_is_none_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'tensorflow'"):
        _ = gpupool.tensorflow
