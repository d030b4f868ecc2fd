"""nvmath and gpupool with a copy of cuDSS each: their handles do not fit, and that is said."""

import ctypes
import importlib
import sys

import gpupool
from double import error_of


def main(theirs, ours):
    # Before nvmath is imported, so that it takes this one.
    ctypes.CDLL(theirs)
    importlib.import_module("nvmath.bindings.cudss")
    ctypes.CDLL(gpupool.cudss.path)
    error = error_of(lambda: gpupool.nvmath.options(gpupool.cudss, gpupool.Stream(0)).__enter__())
    assert f"gpupool has loaded {ours} and nvmath {theirs}" in error, f"the copies are not named: {error}"
    assert f"GPUPOOL_CUDSS_PATH={theirs}" in error, f"what helps is not told: {error}"
    assert gpupool.cudss.stats().created == 0, "a handle was made"


if __name__ == "__main__":
    main(*sys.argv[1:])
