"""What the GPU tests share."""

import ctypes
import gc
import importlib
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpupool
import pytest
from prepared import prepared
from processes import start_python, succeeded
from waiting import LONG, PATIENCE, wait_until

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
EXAMPLES = HERE.parents[1] / "examples"

POOLS = [
    *("cudnn", "cusparse", "cudss", "cublas", "cublaslt", "cusolver"),
    *("custatevec", "cutensornet", "cutensor", "cusparselt"),
]
# Those whose handles have memory that two streams must not use at once: a thread has a handle for each stream.
BY_STREAM = ["custatevec", "cutensornet"]

# What a library calls its functions that get and set a handle's stream; cuDSS has no getter, and where a
# call takes a stream there is neither.
STREAM_FUNCTIONS = {
    "cudnn": ("cudnnGetStream", "cudnnSetStream"),
    "cusparse": ("cusparseGetStream", "cusparseSetStream"),
    "cublas": ("cublasGetStream_v2", "cublasSetStream_v2"),
    "cusolver": ("cusolverDnGetStream", "cusolverDnSetStream"),
    "custatevec": ("custatevecGetStream", "custatevecSetStream"),
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


def pinned_blocks():
    """Return how many blocks of pinned memory live once everything is done."""
    gc.collect()
    cupy.cuda.Device().synchronize()
    gpupool.empty_cache()
    return gpupool.pinned_stats().live_blocks


def pool_or_skip(name):
    """Return the pool of this name, or skip the test where its library is not installed."""
    pool = getattr(gpupool, name)
    if not pool.available:
        pytest.skip(f"needs {name}")
    return pool


def skip_without_two_gpus():
    """Skip the test where there are no two GPUs that reach each other's memory."""
    can_access = cupy.cuda.runtime.deviceCanAccessPeer
    if gpupool.device_count() < 2 or not (can_access(1, 0) and can_access(0, 1)):
        pytest.skip("needs two GPUs that reach each other")


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


def name_of_handler(pool, handle):
    """Return what the handler of a handle's device memory is called; None if it is the library's own."""
    # Context, two functions, and 64 bytes of a name.
    handler = (ctypes.c_char * 88)()
    get = getattr(ctypes.CDLL(pool.path), f"{pool.name}GetDeviceMemHandler")
    status = get(ctypes.c_void_p(int(handle)), handler)
    return handler[24:].split(b"\0")[0].decode() if status == 0 else None


def wait_for_all_back(pool, *mem_pools):
    """Destroy idle handles, and wait for what was freed on streams whose work is not done yet."""
    pool.trim()

    def is_back():
        gpupool.empty_cache()
        return all(mem_pool.stats().live_bytes == 0 for mem_pool in mem_pools)

    wait_until(is_back, "the memory is back")


def in_threads(count, work):
    """Run work(0), work(1), ... in that many threads, all alive until the last is done. Return the results."""
    all_done = threading.Barrier(count, timeout=LONG)

    def run(number):
        try:
            return work(number)
        finally:
            all_done.wait()

    with ThreadPoolExecutor(count) as executor:
        return list(executor.map(run, range(count)))


def in_threads_until_returned(pool, count, work):
    """Do as `in_threads`, and wait until the handles are back: Python joins a thread a little before it ends."""
    held = pool.stats().held
    results = in_threads(count, work)
    wait_until(lambda: pool.stats().held == held, f"{pool.name} handles are back")
    return results


def _run(*arguments, timeout=110 * PATIENCE, **variables):
    # faulthandler says where a crash was; warnings of other people's packages are not what is tested.
    options = ("-X", "faulthandler", "-W", "ignore")
    return start_python(*options, *arguments, folders=[HERE, EXAMPLES], timeout=timeout, **variables)


def run_python(*arguments, **variables):
    """Run Python in a process of its own, which must succeed and write nothing to stderr. Return its stdout."""
    return succeeded(_run(*arguments, **variables))


def run_program(name, *arguments, **variables):
    """Run one of the programs of this folder, as `run_python` does."""
    return run_python(PROGRAMS / name, *arguments, **variables)


def run_prepared_program(name, *arguments, is_loud=False):
    """Run one of the programs of this folder in a fork of a process that has imported PyTorch. Return its stdout.

    It must succeed, and write nothing to stderr unless it is loud.
    """
    done = prepared(HERE, EXAMPLES).run(PROGRAMS / name, *arguments, timeout=110 * PATIENCE)
    return ended_well(done) if is_loud else succeeded(done)


def run_loud_program(name, *arguments, **variables):
    """Run one of the programs of this folder, which must succeed and may write to stderr. Return its stdout."""
    return ended_well(_run(PROGRAMS / name, *arguments, **variables))


def ended_well(done):
    """Return what a process printed, which must have ended as it should and may have complained."""
    __tracebackhide__ = True
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout
