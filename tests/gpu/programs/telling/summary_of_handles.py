"""A summary tells a library's handles, and what of the device they have."""

import sys

import gpupool


def device():
    (found,) = gpupool.memory_summary(0).devices
    return found


def of(name):
    (found,) = [each for each in device().libraries if each.library == name]
    return found


def main(name):
    pool, stream = getattr(gpupool, name), gpupool.Stream()
    gpupool.empty(1, stream).free()
    before = device()
    pool.handle(stream)
    pool.warm(2)
    after = device()
    (library,) = [each for each in after.libraries if each.library == name]
    counts = library.created, library.held, library.idle, library.peak_in_use
    assert counts == (3, 1, 2, 1), f"three handles, two of them idle, are told as {library}"
    assert library.device_bytes == library.peak_device_bytes, f"the bytes are not those of the peak: {library}"
    assert library.device_bytes == after.handle_bytes >= 16 << 20, f"other bytes are the handles': {after}"
    # Loading the library may take some too, of which no handle's creation knows.
    moved = after.other_bytes - before.other_bytes
    assert -(8 << 20) <= moved <= 256 << 20, f"{moved} bytes are told as other programs'"
    pool.trim()
    library = of(name)
    assert library.device_bytes < library.peak_device_bytes, f"trim gave nothing back: {library}"
    gpupool.reset_peak_stats(0)
    library = of(name)
    assert library.device_bytes == library.peak_device_bytes, f"the peak was not reset: {library}"


if __name__ == "__main__":
    main(*sys.argv[1:])
