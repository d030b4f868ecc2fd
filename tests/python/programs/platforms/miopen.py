"""What is MIOpen's own: where its handles cannot be had, how it is asked for streams, and what it refuses."""

import sys

import gpupool
from double import calls, error_of, fail
from errors import assert_says, assert_starts, raised
from library_double import LibraryDouble


def is_itself():
    pool = gpupool.miopen
    assert pool.available, "it is not available"
    assert (pool.name, pool.version) == ("miopen", (1, 2, 3)), f"it says that it is {pool.name} {pool.version}"


def gives_no_handle(start, *said):
    """Check that the error starts so, and says all this."""
    message = error_of(gpupool.miopen.handle)
    assert_starts(message, start)
    assert_says(message, *said)


def is_missing(*said):
    message = error_of(gpupool.miopen.handle)
    assert_starts(message, "LibraryNotFound miopen was not found.")
    assert_says(message, *said)
    assert "CUDA" not in message, f"it is about CUDA: {message}"


def gives_no_handle_on_an_nvidia_gpu():
    assert gpupool.runtime() == "cuda", f"the runtime is {gpupool.runtime()}"
    assert not gpupool.miopen.available, "it is available"
    start = "RuntimeUnavailable the hip runtime is unavailable: this process uses runtime cuda"
    gives_no_handle(start, "set GPUPOOL_RUNTIME=hip before it starts")


def nvidias_library_gives_no_handle_on_an_amd_gpu():
    assert not gpupool.cublas.available, "it is available"
    message = error_of(gpupool.cublas.handle)
    start = "RuntimeUnavailable the cuda runtime is unavailable: this process uses runtime hip"
    assert_starts(message, start)


def the_stream_is_asked_for_and_set_only_if_it_differs():
    library, stream = LibraryDouble("miopen"), gpupool.Stream(1)
    for _ in range(10):
        library.pool.handle(stream)
    counts = [calls(name, library.file) for name in ("miopenSetStream", "miopenGetStream", "miopenCreate")]
    assert counts == [1, 10, 1], f"set, asked for and created {counts} times"


def a_version_that_is_refused_is_told():
    fail("miopenGetVersion=7")
    error = raised(gpupool.LibraryError, lambda: gpupool.miopen.version)
    told = error.library, error.function, error.status, error.code, error.path
    expected = "miopen", "miopenGetVersion", "miopenStatusUnknownError", 7, gpupool.miopen.path
    assert told == expected, f"the refusal is told as {told}"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
