"""A driver that works gives handles; one that fails, in whatever way, gives an error that says in which."""

import sys
import threading

import gpupool
from errors import assert_says, assert_starts, raised
from gpupool import _native

MIB = 1 << 20


def refusal(name, **named):
    """Return the type and the text of the error where there should be no handle."""
    error = raised(gpupool.Error, getattr(gpupool, name).handle, **named)
    return f"{type(error).__name__} {error}"


def gives_a_handle(name):
    assert getattr(gpupool, name).handle() != 0, f"no handle of {name}"
    assert (gpupool.runtime(), gpupool.current_device()) == ("cuda", 0), "of another platform or device"


def gives_none(name, start, *said):
    """Check that the error starts so, and says all this."""
    message = refusal(name)
    # Names are quoted one way or the other.
    assert_starts(message.replace('"', "'"), start)
    assert_says(message, *said)


def gives_none_and_ends_with(name, end):
    message = refusal(name)
    assert message.endswith(end), f"the error does not end with {end!r}: {message}"


def gives_none_of_a_device_that_is_not_there():
    message = refusal("cusparse", device=1)
    expected = "InvalidValue there is no device 1: this process sees 1, numbered from 0"
    assert message == expected, f"a device that is not there: {message}"


def gives_handles_of_each_device():
    pool, stream = gpupool.cusparse, gpupool.Stream(1)
    zero, one = pool.handle(), pool.handle(stream)
    assert zero != one, "two devices have the same handle"
    assert pool.handle(device=1) == one, "device 1 by its number has another handle"
    assert pool.handle(stream.ptr) == one, "device 1 by a stream's address has another handle"
    assert gpupool.current_device() == 0, "a handle of device 1 left it current"
    assert gpupool.device_count() == 2, "there are two devices"
    assert pool.stats(1).hits == 2, "two of three requests on device 1 should hit"
    with gpupool.stream(stream):
        assert gpupool.current_device() == 1, "a stream's scope did not make its device current"
        assert pool.handle() == one, "the scope's device is not that of the handle"
    assert gpupool.current_device() == 0, "the scope's device stayed current"
    threading.Thread(target=pool.handle).start()
    message = refusal("cusparse", stream=stream, device=0)
    assert_starts(message, "InvalidValue ")
    assert_says(message, "belongs to device 1")
    assert (pool.available, pool.version) == (True, (1, 2, 3)), "the library is not told as it is"


def refuses_a_stream_that_it_does_not_know():
    message = refusal("cusparse", stream=gpupool.Stream(1).ptr)
    assert_starts(message, "LibraryError cuda: cuStreamGetCtx failed with CUDA_ERROR_CONTEXT_IS_DESTROYED (709). ")
    assert_says(message, "take a stream of one that lives")


def is_asked_what_its_pool_has():
    """Replay. The double's pool says 64 MiB; what cuMemAlloc takes beyond what is asked for, no driver tells."""
    slots, sizes, streams = (number.to_bytes(width, "little") for number, width in ((0, 4), (MIB, 8), (0, 4)))
    for allocator, expected in (("driver", MIB), ("async", 64 * MIB)):
        peak = _native.replay(slots, sizes, streams, 1, 1, allocator).peak_reserved
        assert peak == expected, f"{allocator} has its peak at {peak} bytes"
        reserved = _native.replay_reserved(slots, sizes, streams, 1, 100, allocator)
        assert reserved == [(0, expected)], f"{allocator} has reserved {reserved}"
    error = raised(gpupool.RuntimeUnavailable, _native.replay, slots, sizes, streams, 1, 1, "gpupool", None, 0, 1)
    assert_says(error, "set GPUPOOL_RUNTIME=host before")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
