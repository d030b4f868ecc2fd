"""`gpupool.info()` says whose memory CuPy has, before and after gpupool is enabled."""

import cupy
import gpupool


def assert_told(uses_gpupool, allocator):
    (found,) = [each for each in gpupool.info().frameworks if each.name == "cupy"]
    told = found.uses_gpupool, found.allocator
    assert told == (uses_gpupool, allocator), f"of CuPy is told {told}"


def main():
    cupy.zeros(10)
    assert_told(False, "CuPy's own pool")
    gpupool.cupy.enable()
    assert_told(True, "gpupool")


if __name__ == "__main__":
    main()
