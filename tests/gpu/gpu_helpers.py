"""What the GPU tests share."""

import ctypes
import importlib
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import gpupool
import pytest

# How many times as long as usual things may take: under compute-sanitizer everything is slow.
PATIENCE = float(os.environ.get("GPUPOOL_TESTS_PATIENCE", "1"))

POOLS = ["cudnn", "cusparse", "cudss", "cublas", "cublaslt", "cusolver"]

# What a library calls its functions that get and set a handle's stream; cuDSS has no getter, cuBLASLt has neither.
STREAM_FUNCTIONS = {
    "cudnn": ("cudnnGetStream", "cudnnSetStream"),
    "cusparse": ("cusparseGetStream", "cusparseSetStream"),
    "cublas": ("cublasGetStream_v2", "cublasSetStream_v2"),
    "cusolver": ("cusolverDnGetStream", "cusolverDnSetStream"),
}


def import_or_none(name):
    """Import a module without its warnings, which would fail the tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError:
            return None


def import_or_skip(name):
    """Import a module without its warnings, or skip the test that asks for it."""
    module = import_or_none(name)
    if module is None:
        pytest.skip(f"needs {name}")
    return module


# None on machines where the whole folder is skipped.
cupy = import_or_none("cupy")


def pool_or_skip(name):
    """Return the pool of this name, or skip the test where its library is not installed."""
    pool = getattr(gpupool, name)
    if not pool.available:
        pytest.skip(f"needs {name}")
    return pool


def stream_of(pool, handle):
    """Ask the library itself for the address of a handle's stream."""
    getter = getattr(ctypes.CDLL(pool.path), STREAM_FUNCTIONS[pool.name][0])
    getter.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
    stream = ctypes.c_void_p()
    assert getter(handle, ctypes.byref(stream)) == 0
    return stream.value or 0


def set_stream(pool, handle, address):
    """Set a handle's stream behind gpupool's back, as CuPy's bindings do at every call."""
    setter = getattr(ctypes.CDLL(pool.path), STREAM_FUNCTIONS[pool.name][1])
    setter.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    assert setter(handle, address) == 0
    assert stream_of(pool, handle) == address


def wait_until(condition, what):
    """Wait for something that is about to happen. It is an error if it does not."""
    deadline = time.monotonic() + 60 * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        os.sched_yield()


def in_threads(count, work):
    """Run work(0), work(1), ... in that many threads, all alive until the last is done. Return the results."""
    all_done = threading.Barrier(count, timeout=60 * PATIENCE)

    def run(number):
        try:
            return work(number)
        finally:
            all_done.wait()

    with ThreadPoolExecutor(count) as executor:
        return list(executor.map(run, range(count)))


def in_threads_until_returned(pool, count, work):
    """As `in_threads`, and wait until the threads' handles are back: Python joins a thread a little before it ends."""
    held = pool.stats().held
    results = in_threads(count, work)
    wait_until(lambda: pool.stats().held == held, f"{pool.name} handles to come back")
    return results


def run_python(*arguments):
    """Run Python in a process of its own, which must succeed and write nothing to stderr. Return its stdout."""
    # faulthandler says where a crash was; warnings of other people's packages are not what is tested.
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110 * PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, ""), f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
