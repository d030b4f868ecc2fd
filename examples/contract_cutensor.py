"""Contract two tensors with cuTENSOR, called through ctypes, by four threads at once.

cuTENSOR's handles have no stream and no workspace: each call takes both, and the workspace is gpupool's memory, freed
in the order of the stream. What a handle keeps is a cache of plans: the later waves of threads get handles whose plans
for this contraction are there. Results are checked against NumPy.

Run it with: python examples/contract_cutensor.py
It needs CuPy and cuTENSOR 2 (pip install cutensor-cu13).
"""

import ctypes
import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ctypes import POINTER, byref, c_double, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import NamedTuple

import cupy
import gpupool
import numpy as np

# Values of cuTENSOR's and CUDA's enums.
CUDA_R_64F = 1
CUTENSOR_OP_IDENTITY = 1
CUTENSOR_ALGO_DEFAULT = -1
CUTENSOR_JIT_MODE_NONE = 0
CUTENSOR_WORKSPACE_DEFAULT = 2
# Of every address that gpupool or CuPy returns, in bytes.
ALIGNMENT = 256

LEFT, RIGHT, OUT = "mhkn", "ukh", "mun"
EXTENTS = {"m": 96, "n": 80, "u": 64, "h": 48, "k": 32}


class Result(NamedTuple):
    """The result of one thread: its handle, the seconds that a plan took, and how far it is from NumPy, relatively."""

    handle: int
    plan_seconds: float
    error: float


@functools.cache
def load():
    """Load cuTENSOR and describe the functions used here, which raise if their status is not 0."""
    cutensor = ctypes.CDLL(gpupool.cutensor.path)

    def check_status(status, function, _arguments):
        if status != 0:
            raise RuntimeError(f"{function.__name__}: status {status}")

    handle = tensor = operation = preference = plan = memory = stream = c_void_p
    sizes, modes = POINTER(c_int64), POINTER(c_int32)
    signatures = {
        "cutensorCreateTensorDescriptor": [handle, POINTER(tensor), c_uint32, sizes, sizes, c_int, c_uint32],
        "cutensorDestroyTensorDescriptor": [tensor],
        "cutensorCreateContraction": [handle, POINTER(operation)]
        + [tensor, modes, c_int] * 3
        + [tensor, modes, c_void_p],
        "cutensorDestroyOperationDescriptor": [operation],
        "cutensorCreatePlanPreference": [handle, POINTER(preference), c_int, c_int],
        "cutensorDestroyPlanPreference": [preference],
        "cutensorEstimateWorkspaceSize": [handle, operation, preference, c_int, POINTER(c_uint64)],
        "cutensorCreatePlan": [handle, POINTER(plan), operation, preference, c_uint64],
        "cutensorDestroyPlan": [plan],
        "cutensorContract": [
            *(handle, plan, POINTER(c_double), memory, memory, POINTER(c_double), memory, memory),
            *(memory, c_uint64, stream),
        ],
    }
    for name, types in signatures.items():
        function = getattr(cutensor, name)
        function.argtypes = types
        function.errcheck = check_status
    return cutensor


def labels(modes):
    """Return a tensor's modes as C takes them."""
    return (c_int32 * len(modes))(*map(ord, modes))


def lengths(values):
    """Return extents or strides as C takes them."""
    return (c_int64 * len(values))(*values)


def contract(handle, left, right, out, stream):
    """Contract two tensors into a third one on a stream, and return the seconds that the plan took."""
    cutensor = load()
    with ExitStack() as cleanup:

        def made(create, destroy, *arguments):
            place = c_void_p()
            getattr(cutensor, create)(handle, byref(place), *arguments)
            cleanup.callback(getattr(cutensor, destroy), place)
            return place

        def tensor(array):
            steps = lengths([stride // array.itemsize for stride in array.strides])
            how = (array.ndim, lengths(array.shape), steps, CUDA_R_64F, ALIGNMENT)
            return made("cutensorCreateTensorDescriptor", "cutensorDestroyTensorDescriptor", *how)

        result = tensor(out)
        operation = made(
            "cutensorCreateContraction",
            "cutensorDestroyOperationDescriptor",
            *(tensor(left), labels(LEFT), CUTENSOR_OP_IDENTITY),
            *(tensor(right), labels(RIGHT), CUTENSOR_OP_IDENTITY),
            *(result, labels(OUT), CUTENSOR_OP_IDENTITY),
            *(result, labels(OUT)),
            c_void_p.in_dll(cutensor, "CUTENSOR_COMPUTE_DESC_64F"),
        )
        how = (CUTENSOR_ALGO_DEFAULT, CUTENSOR_JIT_MODE_NONE)
        preference = made("cutensorCreatePlanPreference", "cutensorDestroyPlanPreference", *how)
        size = c_uint64()
        cutensor.cutensorEstimateWorkspaceSize(handle, operation, preference, CUTENSOR_WORKSPACE_DEFAULT, byref(size))
        start = time.perf_counter()
        plan = made("cutensorCreatePlan", "cutensorDestroyPlan", operation, preference, size)
        seconds = time.perf_counter() - start
        # Freed at the end of this function, for what comes later on this stream.
        workspace = gpupool.empty(size.value, stream)
        arrays = (byref(c_double(1)), left.data.ptr, right.data.ptr, byref(c_double(0)), out.data.ptr, out.data.ptr)
        cutensor.cutensorContract(handle, plan, *arrays, workspace.ptr, size, stream.ptr)
        return seconds


def check(seed):
    """Contract on the GPU and on the CPU, and compare."""
    random = np.random.default_rng(seed)
    left, right = (random.standard_normal([EXTENTS[mode] for mode in modes]) for modes in (LEFT, RIGHT))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        handle = gpupool.cutensor.handle(stream)
        out = cupy.zeros([EXTENTS[mode] for mode in OUT])
        seconds = contract(handle, cupy.asarray(left), cupy.asarray(right), out, stream)
        found = out.get()
        stream.synchronize()
    expected = np.einsum(f"{LEFT},{RIGHT}->{OUT}", left, right, optimize=True)
    return Result(handle, seconds, float(abs(found - expected).max() / abs(expected).max()))


def wave(threads):
    """Check on that many threads at once, and return their results once the threads have ended."""
    all_started = threading.Barrier(threads, timeout=60)

    def work(seed):
        all_started.wait()
        return check(seed)

    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(work, range(threads)))


def main():
    """Run three waves of four threads and print what it took."""
    if not gpupool.cutensor.available:
        print("cuTENSOR is not installed here; get it with: pip install cutensor-cu13")
        return
    threads, waves = 4, 3
    each = [wave(threads) for _ in range(waves)]
    results, stats = [result for wave in each for result in wave], gpupool.cutensor.stats()
    first, last = (max(result.plan_seconds for result in wave) * 1e3 for wave in (each[0], each[-1]))
    print(f"cuTENSOR          {'.'.join(map(str, gpupool.cutensor.version))}, {gpupool.cutensor.path}")
    print(f"threads served    {len(results)}, {threads} at a time")
    print(f"handles created   {stats.created} in {stats.create_seconds * 1e3:.1f} ms")
    print(f"handed over       {stats.hand_overs} times")
    print(f"a plan took       up to {first:.2f} ms in the first wave, up to {last:.2f} ms in the last")
    print(f"largest error     {max(result.error for result in results):.1e}")


if __name__ == "__main__":
    main()
