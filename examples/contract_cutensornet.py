"""Contract a tensor network with cuTensorNet, called through ctypes, by four threads at once, with a MemPool's memory.

cuTensorNet's handles have no stream: each call takes one. Without a workspace of the caller's, a contraction takes its
memory from the MemPool, in the order of that stream. Results are checked against NumPy.

Run it with: python examples/contract_cutensornet.py
It needs CuPy and cuTensorNet 2.11 or later (pip install cutensornet-cu13). cuquantum-python is not needed; its
functions (cuquantum.bindings.cutensornet) and options (cuquantum.tensornet.NetworkOptions) take the same handles.
"""

import ctypes
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ctypes import POINTER, byref, c_int, c_int32, c_int64, c_uint64, c_void_p
from typing import NamedTuple

import cupy
import gpupool
import numpy as np

# Values of enums: CUDA's, and cuTensorNet's.
CUDA_R_64F = 1
MEMSPACE_DEVICE, WORKSPACE_SCRATCH = 0, 0
RECOMMENDED = 1

EXPRESSION = "abcd,bcef,adeg,fgh->h"
EXTENT = 12


class Result(NamedTuple):
    """The result of one thread: its handle, and how far it is from NumPy's, relatively."""

    handle: int
    error: float


@functools.cache
def load():
    """Load cuTensorNet and describe the functions used here, which raise if their status is not 0."""
    cutensornet = ctypes.CDLL(gpupool.cutensornet.path)

    def check_status(status, function, _arguments):
        if status != 0:
            raise RuntimeError(f"{function.__name__}: status {status}")

    handle = network = config = info = memory = stream = c_void_p
    sizes, modes = POINTER(c_int64), POINTER(c_int32)
    signatures = {
        "cutensornetCreateNetwork": [handle, POINTER(network)],
        "cutensornetDestroyNetwork": [network],
        "cutensornetNetworkAppendTensor": [handle, network, c_int32, sizes, modes, c_void_p, c_int, sizes],
        "cutensornetNetworkSetOutputTensor": [handle, network, c_int32, modes, c_int],
        "cutensornetCreateContractionOptimizerConfig": [handle, POINTER(config)],
        "cutensornetDestroyContractionOptimizerConfig": [config],
        "cutensornetCreateContractionOptimizerInfo": [handle, network, POINTER(info)],
        "cutensornetDestroyContractionOptimizerInfo": [info],
        "cutensornetContractionOptimize": [handle, network, config, c_uint64, info],
        "cutensornetCreateWorkspaceDescriptor": [handle, POINTER(c_void_p)],
        "cutensornetDestroyWorkspaceDescriptor": [c_void_p],
        "cutensornetWorkspaceSetMemory": [handle, c_void_p, c_int, c_int, memory, c_int64],
        "cutensornetWorkspaceComputeContractionSizes": [handle, network, info, c_void_p],
        "cutensornetWorkspaceGetMemorySize": [handle, c_void_p, c_int, c_int, c_int, c_void_p],
        "cutensornetNetworkPrepareContraction": [handle, network, c_void_p],
        "cutensornetNetworkSetInputTensorMemory": [handle, network, c_int64, memory, sizes],
        "cutensornetNetworkSetOutputTensorMemory": [handle, network, memory, sizes],
        "cutensornetNetworkContract": [handle, network, c_int32, c_void_p, c_void_p, stream],
    }
    for name, types in signatures.items():
        function = getattr(cutensornet, name)
        function.argtypes = types
        function.errcheck = check_status
    return cutensornet


def labels(modes):
    """Return a tensor's modes as C takes them."""
    return (c_int32 * len(modes))(*map(ord, modes))


def lengths(values):
    """Return extents or strides as C takes them."""
    return (c_int64 * len(values))(*values)


def strides(array):
    """Return the distance of neighbours in each mode, in elements."""
    return lengths([stride // array.itemsize for stride in array.strides])


class Network:
    """A network whose tensors have EXTENT elements in each mode, with an order in which to contract it."""

    def __init__(self, handle, expression):
        self.api, self.handle, self.cleanup = load(), handle, ExitStack()
        inputs, self.output = expression.split("->")
        self.network, self.tensors = self.made("Network", handle), []
        for modes in inputs.split(","):
            tensor = c_int64()
            shape = lengths([EXTENT] * len(modes))
            how = (len(modes), shape, labels(modes), None, CUDA_R_64F)
            self.api.cutensornetNetworkAppendTensor(handle, self.network, *how, byref(tensor))
            self.tensors.append(tensor)
        self.api.cutensornetNetworkSetOutputTensor(
            handle, self.network, len(self.output), labels(self.output), CUDA_R_64F
        )

        config = self.made("ContractionOptimizerConfig", handle)
        self.info = self.made("ContractionOptimizerInfo", handle, self.network)
        most = 1 << 30  # of device memory, in bytes
        self.api.cutensornetContractionOptimize(handle, self.network, config, most, self.info)

    def made(self, what, *arguments):
        """Return an object of cuTensorNet's, which is destroyed with the network."""
        place = c_void_p()
        getattr(self.api, f"cutensornetCreate{what}")(*arguments, byref(place))
        self.cleanup.callback(getattr(self.api, f"cutensornetDestroy{what}"), place)
        return place

    def contract(self, arrays, out, stream):
        """Contract these arrays on a stream."""
        workspace = self.made("WorkspaceDescriptor", self.handle)
        self.api.cutensornetWorkspaceComputeContractionSizes(self.handle, self.network, self.info, workspace)
        size, kind = c_int64(), (MEMSPACE_DEVICE, WORKSPACE_SCRATCH)
        self.api.cutensornetWorkspaceGetMemorySize(self.handle, workspace, RECOMMENDED, *kind, byref(size))
        # Null and a size: so much, from the MemPool. Version 2.14 takes none for a size of 0 or -1.
        self.api.cutensornetWorkspaceSetMemory(self.handle, workspace, *kind, None, size)
        self.api.cutensornetNetworkPrepareContraction(self.handle, self.network, workspace)
        for tensor, array in zip(self.tensors, arrays, strict=True):
            place = array.data.ptr, strides(array)
            self.api.cutensornetNetworkSetInputTensorMemory(self.handle, self.network, tensor, *place)
        self.api.cutensornetNetworkSetOutputTensorMemory(self.handle, self.network, out.data.ptr, strides(out))
        # All slices, and nothing of what is in `out`.
        self.api.cutensornetNetworkContract(self.handle, self.network, 0, workspace, None, stream.ptr)

    def close(self):
        """Destroy it. What it keeps of the MemPool's memory goes back."""
        self.cleanup.close()


def check(seed):
    """Contract on the GPU and on the CPU, and compare."""
    random = np.random.default_rng(seed)
    shapes = [(EXTENT,) * len(modes) for modes in EXPRESSION.split("->")[0].split(",")]
    arrays = [random.standard_normal(shape) for shape in shapes]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        handle = gpupool.cutensornet.handle(stream)
        network = Network(handle, EXPRESSION)
        on_device, out = [cupy.asarray(array) for array in arrays], cupy.zeros((EXTENT,) * len(network.output))
        network.contract(on_device, out, stream)
        found = out.get()
        stream.synchronize()
        network.close()
    expected = np.einsum(EXPRESSION, *arrays, optimize=True)
    return Result(handle, float(abs(found - expected).max() / abs(expected).max()))


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
    if not gpupool.cutensornet.available:
        print("cuTensorNet is not installed here; get it with: pip install cutensornet-cu13")
        return
    threads, waves = 4, 3
    mem_pool = gpupool.MemPool(limit=4 << 30)
    gpupool.cutensornet.set_mem_pool(mem_pool)
    results = [result for _ in range(waves) for result in wave(threads)]
    stats, taken = gpupool.cutensornet.stats(), mem_pool.stats()
    print(f"cuTensorNet       {'.'.join(map(str, gpupool.cutensornet.version))}, {gpupool.cutensornet.path}")
    print(f"network           {EXPRESSION}, {EXTENT} elements in each mode")
    print(f"threads served    {len(results)}, {threads} at a time")
    print(f"handles created   {stats.created} in {stats.create_seconds * 1e3:.1f} ms")
    print(f"handed over       {stats.hand_overs} times")
    print(f"from the MemPool  {taken.allocations} blocks, {taken.reserved_bytes >> 20} MiB reserved")
    print(f"largest error     {max(result.error for result in results):.1e}")


if __name__ == "__main__":
    main()
