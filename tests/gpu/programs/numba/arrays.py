"""Numba's kernels on arrays in gpupool's memory: in many threads, on any stream, short of memory."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpupool
import numpy as np
from cuda.bindings import driver as bindings
from cuda.core import Device
from errors import raised
from kernels import (
    MIB,
    CudaAPIError,
    add,
    address,
    assert_reserved_nothing,
    blocks,
    cuda,
    fill,
    live,
    manager,
    slow_copy,
)


def serve_one_thread_and_sixteen():
    def work(number):
        stream = cuda.stream() if number % 2 else 0
        for step in range(40):
            size = 1000 + 9973 * ((7 * step + number) % 40)
            one = cuda.to_device(np.full(size, number, np.int32), stream=stream)
            other, out = (cuda.device_array(size, np.int32, stream=stream) for _ in range(2))
            fill[blocks(other), 256, stream](other, step)
            add[blocks(out), 256, stream](out, one, other)
            del one, other
            result = out.copy_to_host(stream=stream)
            if stream:
                stream.synchronize()
            assert (result == number + step).all(), f"thread {number} has in step {step} {result}"
        return True

    assert work(0), "the default stream"
    assert work(1), "a stream of its own"
    with ThreadPoolExecutor(16) as executor:
        assert all(executor.map(work, range(32))), "a thread failed"
    assert live() == 0, "arrays are alive"
    gpupool.empty_cache()
    cuda.synchronize()
    gpupool.empty_cache()
    assert_reserved_nothing(gpupool.memory_stats(0))


def may_die_while_a_kernel_of_any_stream_uses_them():
    device = Device(0)
    device.set_current()
    # Neither waits for the other, nor for the default stream.
    made = [device.create_stream() for _ in range(2)]
    first, second = (cuda.external_stream(int(stream.handle)) for stream in made)
    done = made[0].record()
    done.sync()
    for turn in range(20):
        source = cuda.to_device(np.full(MIB, turn, np.int32))
        out = cuda.device_array(MIB, np.int32)
        cuda.synchronize()
        slow_copy[blocks(out), 256, first](out, source, 5)
        old = address(source)
        del source
        others = [cuda.device_array(MIB, np.int32) for _ in range(3)]
        assert old in map(address, others), "the memory was not used again"
        for other in others:
            fill[blocks(other), 256, second](other, -1)
        event = made[0].record()
        waited = event.is_done
        cuda.synchronize()
        assert (out.copy_to_host() == turn).all(), f"memory in use was given to another in turn {turn}"
        assert not waited, "the host waited for the GPU"
        del other, others, out


def that_died_go_before_memory_runs_out():
    gpupool.set_per_process_memory_fraction(0.05)
    half = int(cuda.current_context().get_memory_info().total * 0.03)
    array = cuda.device_array(half, np.uint8)
    error = raised(CudaAPIError, cuda.device_array, half, np.uint8)
    assert error.code == bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY, f"the error's code is {error.code}"
    assert isinstance(error.__cause__, gpupool.OutOfMemory), f"the error's cause is {error.__cause__!r}"
    del error
    # What dies is used before a request fails, while a kernel may still use it.
    fill[blocks(array), 256](array, 1)
    del array
    array = cuda.device_array(half, np.uint8)
    fill[blocks(array), 256](array, 2)
    assert (array[:1000].copy_to_host() == 2).all(), "the memory of an array that died has other values"
    del array
    # Somebody else's request takes it too.
    buffer = gpupool.empty(half)
    assert len(manager().deallocations) == 0, "what had died was not freed for somebody else"
    del buffer


def go_to_other_processes():
    plain = cuda.to_device(np.arange(1000))
    with gpupool.use_mem_pool(gpupool.MemPool(segments=True)):
        of_segments = cuda.to_device(np.arange(1000))
    for array in (plain, of_segments):
        handle = pickle.dumps(array.get_ipc_handle())
        child = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("ipc_child.py"))]
        done = subprocess.run(child, input=handle, capture_output=True, check=False)
        assert done.returncode == 0, f"the other process failed: {done.stderr.decode()}"


if __name__ == "__main__":
    globals()[sys.argv[1]]()
