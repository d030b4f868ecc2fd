"""Numba's arrays in gpupool's memory. Numba chooses its memory manager once, so each test is a process of its own."""

import importlib
import re

import pytest
from gpu_helpers import import_or_skip, run_python

PRELUDE = """
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import gpupool

gpupool.numba.enable()
from numba import cuda

MIB = 1 << 20

@cuda.jit
def fill(out, value):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = value

@cuda.jit
def add(out, one, other):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = one[i] + other[i]

@cuda.jit
def slow_copy(out, source, milliseconds):
    for _ in range(milliseconds):
        cuda.nanosleep(1000000)
    i = cuda.grid(1)
    if i < out.size:
        out[i] = source[i]

def blocks(array):
    return (array.size + 255) // 256

def address(array):
    return array.__cuda_array_interface__["data"][0]

def manager():
    return cuda.current_context().memory_manager

def live():
    gc.collect()
    manager().deallocations.clear()
    return gpupool.memory_stats(0).live_blocks

# Compiles and loads the kernels.
warm = [cuda.to_device(np.ones(1000, np.int32)) for _ in range(3)]
fill[blocks(warm[0]), 256](warm[0], 1)
add[blocks(warm[0]), 256](*warm)
slow_copy[blocks(warm[0]), 256](warm[0], warm[1], 1)
cuda.synchronize()
del warm
assert live() == 0
"""


def run(code):
    import_or_skip("numba.cuda")
    try:
        importlib.import_module("numba.cuda.np.arrayobj")
    except AttributeError as error:
        # numba-cuda 0.30 and NumPy 2.5: no kernel at all can be compiled.
        pytest.skip(f"this Numba and this NumPy do not go together: {error}")
    return run_python("-c", PRELUDE + code)


def test_kernels_work_on_one_thread_and_on_sixteen():
    run("""
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
        assert (result == number + step).all(), (number, step, result)
    return True

assert work(0) and work(1)
with ThreadPoolExecutor(16) as executor:
    assert all(executor.map(work, range(32)))
assert live() == 0
gpupool.empty_cache()
cuda.synchronize()
gpupool.empty_cache()
assert gpupool.memory_stats(0).reserved_bytes == 0, gpupool.memory_stats(0)
""")


def test_an_array_may_die_while_a_kernel_of_any_stream_uses_it():
    run("""
from cuda.core import Device

device = Device(0)
device.set_current()
# Neither waits for the other, nor for the default stream.
made = [device.create_stream() for _ in range(2)]
first, second = (cuda.external_stream(int(stream.handle)) for stream in made)
done = made[0].record()
done.sync()
for round in range(20):
    source = cuda.to_device(np.full(MIB, round, np.int32))
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
    assert (out.copy_to_host() == round).all(), round
    assert not waited, "the host waited for the GPU"
    del other, others, out
""")


def test_out_of_memory_is_numbas_error():
    run("""
from cuda.bindings import driver as bindings
from numba.cuda.cudadrv.driver import CudaAPIError

gpupool.set_per_process_memory_fraction(0.05)
half = int(cuda.current_context().get_memory_info().total * 0.03)
array = cuda.device_array(half, np.uint8)
try:
    cuda.device_array(half, np.uint8)
    raise SystemExit("there was memory")
except CudaAPIError as error:
    assert error.code == bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert isinstance(error.__cause__, gpupool.OutOfMemory)
# What dies is used before a request fails, while a kernel may still use it.
fill[blocks(array), 256](array, 1)
del array
array = cuda.device_array(half, np.uint8)
fill[blocks(array), 256](array, 2)
assert (array[:1000].copy_to_host() == 2).all()
del array
# Somebody else's request takes it too.
buffer = gpupool.empty(half)
assert len(manager().deallocations) == 0
""")


def test_frameworks_share_a_pool():
    run("""
import cupy
from cuda.core import Device

device = Device(0)
device.set_current()
stream = device.create_stream()
pool = gpupool.MemPool()
make = cupy.cuda.memory.CFunctionAllocator
allocator = make(0, gpupool.c_api.cupy_malloc, gpupool.c_api.cupy_free, gpupool.c_api)
with gpupool.numba.using(pool), gpupool.cuda_core.using(pool), cupy.cuda.using_allocator(allocator.malloc):
    array = cuda.to_device(np.arange(1000, dtype=np.int32))
    buffer = device.allocate(4000, stream=stream)
    other = cupy.empty(1000, np.int32)
assert pool.stats().live_blocks == 3
outside = cuda.to_device(np.arange(1000, dtype=np.int32))
assert pool.stats().live_blocks == 3
# CuPy's array in Numba's kernel and back.
add[blocks(array), 256](other, array, outside)
cuda.synchronize()
assert (other.get() == 2 * np.arange(1000)).all()
assert (cupy.asarray(array).get() == np.arange(1000)).all()
del array, other
buffer.close()
gc.collect()
manager().deallocations.clear()
assert pool.stats().live_blocks == 0
pool.trim()
cuda.synchronize()
pool.trim()
assert pool.stats().reserved_bytes == 0
""")


def test_a_graphs_arrays_are_its_own():
    run("""
import cupy

pool, stream = gpupool.MemPool(), cupy.cuda.Stream(non_blocking=True)
mine = cuda.external_stream(stream.ptr)
source = cuda.to_device(np.arange(MIB, dtype=np.int32))
out = cuda.device_array(MIB, np.int32)
cuda.synchronize()
with stream:
    stream.begin_capture()
    with pool.capture(stream) as memory:
        between = cuda.device_array(MIB, np.int32)
        # Dies while its kernels are captured.
        dead = cuda.device_array(MIB, np.int32)
        add[blocks(out), 256, mine](dead, source, source)
        add[blocks(out), 256, mine](between, dead, source)
        add[blocks(out), 256, mine](out, between, source)
        addresses = {address(between), address(dead)}
        del dead
        others = [cuda.device_array(MIB, np.int32) for _ in range(12)]
        assert not {address(other) for other in others} & addresses
        del others
    graph = stream.end_capture()
del between
for round in range(5):
    others = [cuda.to_device(np.full(MIB, -1, np.int32)) for _ in range(8)]
    assert not {address(other) for other in others} & addresses
    fill[blocks(out), 256](out, 0)
    cuda.synchronize()
    graph.launch(stream)
    stream.synchronize()
    assert (out.copy_to_host() == 4 * np.arange(MIB)).all(), round
    assert all((other.copy_to_host() == -1).all() for other in others)
    del others
del graph
memory.reset()
manager().deallocations.clear()
pool.trim()
cuda.synchronize()
pool.trim()
assert pool.stats().reserved_bytes == 0, pool.stats()
""")


def test_memory_of_segments_has_ipc_handles():
    run("""
import pickle, subprocess

try:
    cuda.device_array(1000).get_ipc_handle()
    raise SystemExit("pages that move had a handle")
except NotImplementedError as error:
    assert "segments=True" in str(error)
with gpupool.use_mem_pool(gpupool.MemPool(segments=True)):
    array = cuda.to_device(np.arange(1000))
handle = array.get_ipc_handle()
CHILD = '''
import pickle, sys
from numba import cuda
with pickle.load(sys.stdin.buffer) as opened:
    print(int(opened.copy_to_host().sum()))
'''
done = subprocess.run([sys.executable, "-W", "ignore", "-c", CHILD], input=pickle.dumps(handle), capture_output=True)
assert done.stdout.strip() == b"499500", done
""")


ORDERS = {
    "gpupool, numba, torch": ["gpupool", "numba", "torch"],
    "torch, numba, gpupool": ["torch", "numba", "gpupool"],
    "numba, gpupool, torch": ["numba", "gpupool", "torch"],
}

EXIT = """
import sys
for name in sys.argv[1].split(", "):
    __import__(name)
import gpupool, threading, numpy, torch
gpupool.numba.enable()
from numba import cuda
alive = [cuda.to_device(numpy.arange(100000)) for _ in range(30)]
alive.append(alive[0][10:20])
alive.append(torch.eye(64, device="cuda"))

def work(started):
    alive.append(cuda.device_array(1000))
    started.set()
    threading.Event().wait()

started = threading.Event()
threading.Thread(target=work, args=(started,), daemon=True).start()
assert started.wait(60)
del alive[3:20]
"""


@pytest.mark.parametrize("order", ORDERS)
def test_exits_cleanly_with_live_arrays(order):
    import_or_skip("numba.cuda")
    import_or_skip("torch")
    run_python("-c", EXIT, order)


def test_the_example_gives_right_results(examples):
    import_or_skip("numba.cuda")
    output = run_python(str(examples / "numba_kernel.py"))
    errors = re.search(r"^largest error +(\S+) +(\S+)$", output, re.MULTILINE)
    assert errors, output
    assert max(map(float, errors.groups())) < 1e-5, output
