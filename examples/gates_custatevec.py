"""Quantum gates with cuStateVec, called through ctypes, by four threads at once, with memory from a MemPool.

Each thread has a state of its own, on a stream of its own, and takes its handle from gpupool. A gate on many qubits
needs more memory than a handle has: cuStateVec takes it from the MemPool for the time of the call, in the order of the
handle's stream. Results are checked against NumPy.

Run it with: python examples/gates_custatevec.py
It needs CuPy and cuStateVec (pip install custatevec-cu13). cuquantum-python is not needed; its functions
(cuquantum.bindings.custatevec) take the same handles.
"""

import ctypes
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, byref, c_int, c_int32, c_size_t, c_uint32, c_void_p
from typing import NamedTuple

import cupy
import gpupool
import numpy as np

# Values of cuStateVec's and CUDA's enums.
CUDA_C_64F = 5
CUSTATEVEC_MATRIX_LAYOUT_ROW = 1
CUSTATEVEC_COMPUTE_DEFAULT = 0

QUBITS = 20
# How many qubits the last gate acts on.
TARGETS = 10
HADAMARD = np.array([[1, 1], [1, -1]]) / np.sqrt(2)
NOT = np.array([[0, 1], [1, 0]])


class Result(NamedTuple):
    """The result of one thread: its handle, what its last gate needed beside the handle's memory, and the error."""

    handle: int
    workspace_bytes: int
    error: float


@functools.cache
def load():
    """Load cuStateVec and describe the functions used here, which raise if their status is not 0."""
    custatevec = ctypes.CDLL(gpupool.custatevec.path)

    def check_status(status, function, _arguments):
        if status != 0:
            raise RuntimeError(f"{function.__name__}: status {status}")

    matrix = [c_void_p, c_int, c_int, c_int32]
    signatures = {
        "custatevecApplyMatrixGetWorkspaceSize": [
            *(c_void_p, c_int, c_uint32, *matrix),
            *(c_uint32, c_uint32, c_int, POINTER(c_size_t)),
        ],
        "custatevecApplyMatrix": [
            *(c_void_p, c_void_p, c_int, c_uint32, *matrix),
            *(POINTER(c_int32), c_uint32, POINTER(c_int32), POINTER(c_int32), c_uint32),
            *(c_int, c_void_p, c_size_t),
        ],
    }
    for name, types in signatures.items():
        function = getattr(custatevec, name)
        function.argtypes = types
        function.errcheck = check_status
    return custatevec


def indices(*qubits):
    """Return qubits as C takes them."""
    return (c_int32 * len(qubits))(*qubits)


def apply(handle, state, gate, targets, controls=()):
    """Apply a gate, a matrix on the host. Without a workspace of the caller's it takes memory from the MemPool."""
    gate = np.ascontiguousarray(gate, dtype=np.complex128)
    load().custatevecApplyMatrix(
        handle,
        state.data.ptr,
        CUDA_C_64F,
        state.size.bit_length() - 1,
        gate.ctypes.data,
        CUDA_C_64F,
        CUSTATEVEC_MATRIX_LAYOUT_ROW,
        0,  # not its adjoint
        indices(*targets),
        len(targets),
        indices(*controls) if controls else None,
        None,  # all controls are to be 1
        len(controls),
        CUSTATEVEC_COMPUTE_DEFAULT,
        None,
        0,
    )


def workspace_of(handle, gate):
    """Return how much memory a gate needs beside the handle's, in bytes."""
    size, targets = c_size_t(), gate.shape[0].bit_length() - 1
    how = (gate.ctypes.data, CUDA_C_64F, CUSTATEVEC_MATRIX_LAYOUT_ROW, 0, targets, 0, CUSTATEVEC_COMPUTE_DEFAULT)
    load().custatevecApplyMatrixGetWorkspaceSize(handle, CUDA_C_64F, QUBITS, *how, byref(size))
    return size.value


def random_gate(seed):
    """Return a random unitary matrix on TARGETS qubits."""
    random, size = np.random.default_rng(seed), 1 << TARGETS
    square = random.standard_normal((size, size)) + 1j * random.standard_normal((size, size))
    return np.ascontiguousarray(np.linalg.qr(square)[0])


def check(seed):
    """Entangle all qubits, apply a random gate to the first of them, and compare with NumPy."""
    gate = random_gate(seed)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        handle = gpupool.custatevec.handle(stream)
        state = cupy.zeros(1 << QUBITS, dtype=np.complex128)
        state[0] = 1
        apply(handle, state, HADAMARD, targets=[0])
        for qubit in range(1, QUBITS):
            apply(handle, state, NOT, targets=[qubit], controls=[qubit - 1])
        apply(handle, state, gate, targets=range(TARGETS))
        found, needed = state.get(), workspace_of(handle, gate)
        stream.synchronize()
    # The first qubit is the lowest bit of an index.
    expected = np.zeros((1 << (QUBITS - TARGETS), 1 << TARGETS), dtype=np.complex128)
    expected[0, 0] = expected[-1, -1] = 1 / np.sqrt(2)
    error = abs(found - (expected @ gate.T).ravel()).max()
    return Result(handle, needed, float(error))


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
    if not gpupool.custatevec.available:
        print("cuStateVec is not installed here; get it with: pip install custatevec-cu13")
        return
    threads, waves = 4, 3
    mem_pool = gpupool.MemPool(limit=4 << 30)
    gpupool.custatevec.set_mem_pool(mem_pool)
    results = [result for _ in range(waves) for result in wave(threads)]
    stats, taken = gpupool.custatevec.stats(), mem_pool.stats()
    print(f"cuStateVec        {'.'.join(map(str, gpupool.custatevec.version))}, {gpupool.custatevec.path}")
    print(f"qubits            {QUBITS}, and a gate on {TARGETS} that needs {results[0].workspace_bytes} bytes more")
    print(f"threads served    {len(results)}, {threads} at a time")
    print(f"handles created   {stats.created} in {stats.create_seconds * 1e3:.1f} ms")
    print(f"handed over       {stats.hand_overs} times")
    print(f"from the MemPool  {taken.allocations} blocks, {taken.reserved_bytes >> 20} MiB reserved")
    print(f"largest error     {max(result.error for result in results):.1e}")


if __name__ == "__main__":
    main()
