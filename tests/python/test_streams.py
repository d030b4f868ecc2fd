"""Streams from anywhere, by the protocol of each framework."""

import ctypes

import gpupool
import pytest
from gpupool import _native
from own_memory import other_thread


class Object:
    """An object with the attributes given."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __repr__(self):
        return f"Object({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def checked_out_stream(stream, **arguments):
    """Return the stream that the library sees after a checkout with this argument."""
    return _native.host_stream_of(gpupool.simulated.handle(stream, **arguments))


@pytest.fixture
def address():
    """Return a live stream's address on device 1."""
    stream = gpupool.Stream(1)
    yield stream.ptr
    assert stream.query()


class Protocol:
    """A stream with the common protocol, as cuda.core, CuPy, PyTorch and RMM have."""

    def __init__(self, answer):
        self.answer = answer

    def __repr__(self):
        return f"Protocol({self.answer!r})"

    def __cuda_stream__(self):
        return self.answer


def kinds(address):
    return {
        "int": address,
        "__cuda_stream__": Protocol((0, address)),
        "__cuda_stream__ property": Object(__cuda_stream__=(0, address)),
        "PyTorch": Object(cuda_stream=address, device_index=1),
        "CuPy": Object(ptr=address, device_id=1),
        "Numba": Object(handle=ctypes.c_void_p(address)),
        "Numba-CUDA": Object(handle=ctypes.c_uint64(address)),
    }


@pytest.mark.parametrize("kind", kinds(0))
def test_every_kind_of_stream_reaches_the_library(kind, address):
    stream = kinds(address)[kind]
    assert checked_out_stream(stream) == address
    assert gpupool.simulated.handle(stream) == gpupool.simulated.handle(device=1)
    assert checked_out_stream(stream, device=1) == address
    with pytest.raises(gpupool.InvalidValue, match="belongs to device 1"):
        gpupool.simulated.handle(stream, device=0)


@pytest.mark.parametrize(
    "default",
    [
        Object(cuda_stream=0, device_index=1),
        Object(ptr=2, device_id=1),
        Object(__cuda_stream__=(0, 1), device=Object(device_id=1)),
    ],
)
def test_a_default_stream_object_says_whose_it_is(default):
    assert gpupool.simulated.handle(default) == gpupool.simulated.handle(device=1)
    with pytest.raises(gpupool.InvalidValue, match="default stream of device 1, not of device 0"):
        gpupool.simulated.handle(default, device=0)


@pytest.mark.parametrize("default", [0, 1, 2, Object(ptr=0, device_id=-1), Object(handle=ctypes.c_void_p(None))])
def test_any_other_default_stream_is_that_of_the_current_device_or_the_one_given(default):
    assert gpupool.simulated.handle(default) == gpupool.simulated.handle(device=0)
    assert gpupool.simulated.handle(default, device=1) == gpupool.simulated.handle(device=1)


@pytest.mark.parametrize(
    "wrong",
    [
        Object(),
        [],
        Protocol((1, 64)),
        Protocol(64),
        Protocol((0, "x")),
        Protocol((0, True)),
        Object(ptr="x"),
        Object(ptr=True),
    ],
    ids=repr,
)
def test_what_is_no_stream_is_an_error(wrong):
    with pytest.raises(gpupool.InvalidValue, match="stream"):
        gpupool.simulated.handle(wrong)
    with pytest.raises(gpupool.InvalidValue, match="stream"), gpupool.stream(wrong):
        pass


def test_an_exception_of_the_stream_object_passes():
    class Broken:
        def __cuda_stream__(self):
            raise KeyError("broken")

    with pytest.raises(KeyError):
        gpupool.simulated.handle(Broken())


def test_a_destroyed_stream_is_an_error():
    address = gpupool.Stream().ptr
    with pytest.raises(gpupool.LibraryError, match="HOST_ERROR_INVALID_HANDLE"):
        gpupool.simulated.handle(address)


def test_the_current_stream():
    outer, inner = gpupool.Stream(0), gpupool.Stream(1)
    with gpupool.stream(outer) as entered:
        assert entered is outer
        assert checked_out_stream(None) == outer.ptr
        with gpupool.stream(inner.ptr):
            assert gpupool.current_device() == 1
            assert checked_out_stream(None) == inner.ptr
            assert checked_out_stream(None, device=0) == outer.ptr
            with other_thread() as run:
                assert run(checked_out_stream, None) == 0
        assert gpupool.current_device() == 0
        assert checked_out_stream(None) == outer.ptr
        # A scope may be entered again.
        scope = gpupool.stream(inner)
        with scope, scope:
            assert checked_out_stream(None) == inner.ptr
        with pytest.raises(ZeroDivisionError), scope:
            1 / 0  # noqa: B018
        assert checked_out_stream(None) == outer.ptr
    assert (gpupool.current_device(), checked_out_stream(None)) == (0, 0)


@pytest.mark.parametrize(
    ("make", "name"), [(gpupool.stream, "gpupool.stream"), (lambda stream: stream, "a Stream's block")]
)
def test_a_block_is_left_on_the_thread_that_entered_it(make, name):
    stream = gpupool.Stream()
    block = make(stream)
    with block, other_thread() as run:
        with pytest.raises(gpupool.InvalidValue, match=f"{name} was left on a thread that did not enter it"):
            run(block.__exit__, None, None, None)
        assert checked_out_stream(None) == stream.ptr
    assert checked_out_stream(None) == 0


def test_a_stream_of_ones_own():
    stream = gpupool.Stream(1)
    assert stream.device == 1
    assert stream.__cuda_stream__() == (0, stream.ptr)
    assert stream.query()
    number = _native.host_submit(stream)
    assert not stream.query()
    _native.host_complete(stream, number)
    assert stream.query()
    _native.host_submit(stream)
    stream.synchronize()
    assert stream.query()
    assert repr(stream) == f"gpupool.Stream(ptr={stream.ptr:#x}, device=1 (simulated))"


def test_a_stream_is_current_in_its_own_block():
    outer, inner = gpupool.Stream(), gpupool.Stream(1)
    with outer as entered:
        assert entered is outer
        assert (gpupool.current_stream(), gpupool.empty(1).stream) == (outer, outer.ptr)
        with inner, outer, inner:
            assert (gpupool.current_stream(), gpupool.current_device()) == (inner, 1)
            assert gpupool.current_stream(0) == outer
        assert (gpupool.current_stream(), gpupool.current_device()) == (outer, 0)
    assert gpupool.current_stream().ptr == 0
    with pytest.raises(RuntimeError), outer:
        raise RuntimeError
    assert gpupool.current_stream().ptr == 0


def test_the_current_stream_is_whichever_stream_is_current(address):
    assert gpupool.current_stream(1).ptr == 0
    with gpupool.stream(address):
        found = gpupool.current_stream()
        assert (found.ptr, found.device) == (address, 1)
        assert found.query()
    former = _native.set_stream_source(lambda device: address if device == 1 else 0)
    try:
        assert (gpupool.current_stream(1).ptr, gpupool.current_stream().ptr) == (address, 0)
    finally:
        _native.set_stream_source(former)
    with pytest.raises(gpupool.InvalidValue, match="no device 7"):
        gpupool.current_stream(7)


def test_the_current_stream_keeps_a_stream_of_gpupools_alive():
    with gpupool.Stream():
        found = gpupool.current_stream()
    # Its own object is gone.
    assert found.query()


def test_streams_are_equal_if_they_are_one_stream():
    stream = gpupool.Stream()
    with stream:
        again = gpupool.current_stream()
    assert (again == stream, hash(again) == hash(stream), again is stream) == (True, True, False)
    assert stream != gpupool.Stream()
    assert stream != stream.ptr
    with gpupool.stream(1):
        assert gpupool.current_stream() == gpupool.current_stream(0)
        legacy = gpupool.current_stream()
    assert gpupool.current_stream() == legacy
    assert gpupool.current_stream(1) != legacy
