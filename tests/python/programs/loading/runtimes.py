"""Which runtime is chosen, and why one that is asked for cannot be had."""

import os
import sys
import warnings

import gpupool
from errors import assert_says, assert_starts, raised


def is_chosen(name):
    chosen = gpupool.runtime()
    assert chosen == name, f"the runtime is {chosen}, not {name}"
    # A stream is the first thing that needs a device of it.
    gpupool.Stream()


def cannot_be_had(start, *said):
    """Check that the error starts so, and says all this."""
    message = str(raised(gpupool.RuntimeUnavailable, gpupool.runtime))
    assert_starts(message, start)
    assert_says(message, *said)
    of_a_stream = str(raised(gpupool.RuntimeUnavailable, gpupool.Stream))
    assert of_a_stream == message, f"a stream is refused otherwise: {of_a_stream}"


def memory_is_refused(start, *said):
    """Check that no memory of the host is taken for a device's: the error starts so, and says all this."""
    message = str(raised(gpupool.RuntimeUnavailable, gpupool.empty, 1 << 20))
    assert_starts(message, start)
    assert_says(message, *said, ". To do without a GPU, on simulated devices, set GPUPOOL_RUNTIME=host")
    cannot_be_had(message)


def memory_is_simulated():
    with warnings.catch_warnings(record=True) as seen:
        buffer = gpupool.empty(64)
    is_wanted = os.environ.get("GPUPOOL_RUNTIME") == "host"
    assert len(seen) == (0 if is_wanted else 1), f"warned of {seen}"
    for warning in seen:
        assert_says(str(warning.message), "no GPU was found", "GPUPOOL_RUNTIME=host")
    buffer.fill(7)
    assert gpupool.runtime() == "host", f"the runtime is {gpupool.runtime()}"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
