"""Whose memory of the device is told: of other code of the process, beside gpupool's. Each device has 1024 MiB."""

import gpupool
from double import MIB, error_of
from other import cache, take, take_pages, use_device


def told(device: int = 0) -> list[tuple[int, int, int]]:
    """Return what each holds and held, in MiB, and its allocations."""
    summary = gpupool._native.summarize(device)
    return [(each["nbytes"] // MIB, each["peak_bytes"] // MIB, each["allocations"]) for each in summary["holders"]]


def others_are_told_and_gpupool_is_not_one_of_them():
    use_device(0)
    buffer = gpupool.empty(100 * MIB)
    assert take(300) == 0
    assert take_pages(10, 0) == 0
    assert take_pages(20, 1) == 0
    # What a program calls by ctypes is called by the library behind that.
    assert (told(0), told(1)) == ([(310, 310, 2)], [(20, 20, 1)])
    assert buffer.nbytes == 100 * MIB


def contexts_and_code_are_the_rest_of_what_the_process_has():
    use_device(0)
    buffer = gpupool.empty(100 * MIB)
    assert take(300) == 0
    # NVML says 1000.
    summary = gpupool._native.summarize(0)
    assert summary["context_bytes"] == (1000 - 300) * MIB - summary["reserved_bytes"]
    assert buffer.nbytes == 100 * MIB


def an_error_names_who_holds_the_memory():
    use_device(0)
    assert take(700) == 0
    error = error_of(gpupool.empty, 500 * MIB)
    assert error.startswith("OutOfMemory "), error
    assert "700.0 MiB" in error, error
    assert "libffi" in error or "_ctypes" in error, error


def what_was_given_back_is_in_the_report():
    use_device(0)
    cache(800)
    assert take(500) == 0
