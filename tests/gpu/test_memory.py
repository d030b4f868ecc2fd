"""Device memory of gpupool's in other people's hands: by DLPack and the CUDA array interface, on their own streams."""

import gc
import os

import gpupool
import numpy as np
import pytest
from gpu_helpers import cupy, import_or_skip, in_threads
from waiting import PATIENCE

pytestmark = pytest.mark.device_memory(gib=4)

MIB = 1 << 20
# About half a second of an H200.
SLEEP_CYCLES = int(1_000_000_000 * PATIENCE)


@pytest.fixture
def torch():
    """Return PyTorch with its context made, or skip."""
    torch = import_or_skip("torch")
    torch.empty(1, device="cuda")
    return torch


@pytest.fixture
def jax():
    """Return JAX, which leaves the GPU's memory to others as well, or skip."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = import_or_skip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("needs JAX with a GPU")
    return jax


def fill(buffer, value, stream):
    """Fill a buffer on a stream, and don't wait for it."""
    cupy.cuda.runtime.memsetAsync(buffer.ptr, value, buffer.nbytes, stream.ptr)


def settled():
    """Return how many blocks live, those that waited for streams left out."""
    cupy.cuda.Device().synchronize()
    gpupool.empty_cache()
    return gpupool.memory_stats().live_blocks


def test_cupy_sees_a_buffer():
    buffer = gpupool.empty(4096)
    interface = buffer.__cuda_array_interface__
    assert (interface["shape"], interface["data"][0]) == ((4096,), buffer.ptr)
    assert interface["version"] >= 3
    array = cupy.asarray(buffer)
    assert (array.data.ptr, array.dtype, array.shape) == (buffer.ptr, cupy.uint8, (4096,))
    array[:] = cupy.arange(4096, dtype=cupy.uint8)
    again = cupy.asarray(buffer)
    assert (again.get() == cupy.arange(4096, dtype=cupy.uint8).get()).all()


def test_torch_sees_a_buffer(torch):
    buffer = gpupool.empty(4096)
    tensor = torch.as_tensor(buffer, device="cuda")
    assert (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape)) == (buffer.ptr, torch.uint8, (4096,))
    tensor.fill_(7)
    assert (cupy.asarray(buffer).get() == 7).all()


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_dlpack_shares_a_buffer_and_keeps_it_alive(library):
    module = import_or_skip(library)
    stream = gpupool.Stream()
    buffer = gpupool.empty(3 * MIB, stream)
    # 2 is DLPack's number for CUDA.
    assert buffer.__dlpack_device__() == (2, 0)
    before = settled()
    array = module.from_dlpack(buffer)
    address = buffer.ptr
    array[:] = 9
    del buffer
    gc.collect()
    assert settled() == before, "the consumer's memory was freed"
    assert int(array.sum(dtype=module.int64)) == 9 * 3 * MIB
    pointer = array.data.ptr if library == "cupy" else array.data_ptr()
    assert pointer == address
    del array
    gc.collect()
    assert settled() == before - 1


def test_memory_is_not_used_again_before_its_consumer_is_done(torch):
    stream, consumer = gpupool.Stream(), torch.cuda.Stream()
    buffer = gpupool.empty(8 * MIB, stream)
    fill(buffer, 1, stream)
    with torch.cuda.stream(consumer):
        tensor = torch.from_dlpack(buffer)
        # Loaded before a kernel is busy, which loading may wait for.
        assert int(tensor.sum(dtype=torch.int64)) == 8 * MIB
        torch.cuda._sleep(SLEEP_CYCLES)
        total = tensor.sum(dtype=torch.int64)
    del tensor, buffer
    gc.collect()
    others = [gpupool.empty(8 * MIB, stream) for _ in range(4)]
    for other in others:
        fill(other, 3, stream)
    stream.synchronize()
    assert not consumer.query(), "the consumer was waited for on the host"
    consumer.synchronize()
    assert int(total) == 8 * MIB


@pytest.mark.parametrize("library", ["cupy", "jax"])
def test_consumers_wait_for_the_producer(library, torch, request):
    stream = gpupool.Stream()
    buffer = gpupool.empty(8 * MIB, stream)
    fill(buffer, 1, stream)
    if library == "jax":
        jax = request.getfixturevalue("jax")
        # Compiled before.
        assert int(jax.numpy.sum(jax.dlpack.from_dlpack(buffer), dtype="uint32")) == 8 * MIB
    stream.synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        torch.cuda._sleep(SLEEP_CYCLES)
    fill(buffer, 2, stream)
    if library == "jax":
        total = jax.numpy.sum(jax.dlpack.from_dlpack(buffer), dtype="uint32")
    else:
        with cupy.cuda.Stream(non_blocking=True):
            total = int(cupy.from_dlpack(buffer).sum(dtype="int64"))
    assert int(total) == 2 * 8 * MIB


def test_pytorch_waits_for_the_producer_on_the_gpu(torch):
    stream = gpupool.Stream()
    buffer = gpupool.empty(8 * MIB, stream)
    producer, consumer = torch.cuda.ExternalStream(stream.ptr), torch.cuda.Stream()
    view = torch.as_tensor(buffer, device="cuda")
    view.fill_(1)
    # Loads the kernels, which would wait for the one that sleeps.
    assert int(torch.from_dlpack(buffer).sum(dtype=torch.int64)) == 8 * MIB
    torch.cuda.synchronize()
    with torch.cuda.stream(producer):
        torch.cuda._sleep(SLEEP_CYCLES)
        view.fill_(2)
    with torch.cuda.stream(consumer):
        tensor = torch.from_dlpack(buffer)
        total = tensor.sum(dtype=torch.int64)
    assert not producer.query(), "the producer was waited for on the host"
    consumer.synchronize()
    assert int(total) == 2 * 8 * MIB


def test_a_consumers_stream_may_be_destroyed_before_the_memory_is_freed():
    before = settled()
    stream = gpupool.Stream()
    for _ in range(20):
        buffer = gpupool.empty(MIB, stream)
        fill(buffer, 5, stream)
        with cupy.cuda.Stream(non_blocking=True) as consumer:
            array = cupy.from_dlpack(buffer)
            total = array.sum(dtype="int64")
            consumer.synchronize()
        # No name is left for the stream, and CuPy destroys it.
        del consumer
        gc.collect()
        assert int(total) == 5 * MIB
        del array, buffer, total
    assert settled() == before


def test_many_threads_share_buffers(torch):
    before = settled()

    def work(number):
        stream = gpupool.Stream()
        for turn in range(30):
            buffer = gpupool.empty((number + 1) * 70_000, stream)
            fill(buffer, number + turn, stream)
            if turn % 2:
                with torch.cuda.stream(torch.cuda.Stream()):
                    total = int(torch.from_dlpack(buffer).sum(dtype=torch.int64))
            else:
                with cupy.cuda.Stream(non_blocking=True):
                    total = int(cupy.from_dlpack(buffer).sum(dtype="int64"))
            assert total == (number + turn) * buffer.nbytes
        return True

    assert all(in_threads(16, work))
    gc.collect()
    assert settled() == before


def test_jax_takes_bytes_and_makes_numbers_of_them(jax):
    before = settled()
    buffer = gpupool.empty(4096 * 4)
    numbers = cupy.asarray(buffer).view(np.float32)
    numbers[:] = cupy.arange(4096)
    taken = jax.dlpack.from_dlpack(buffer)
    assert (taken.dtype, taken.shape) == (np.uint8, (4096 * 4,))
    assert taken.unsafe_buffer_pointer() == buffer.ptr
    # A new array of JAX's own.
    made = jax.lax.bitcast_convert_type(taken.reshape(-1, 4), jax.numpy.float32)
    assert (np.asarray(made) == np.arange(4096)).all()
    # Without a copy: CuPy's view says what the bytes are.
    shared = jax.dlpack.from_dlpack(numbers.reshape(64, 64))
    assert (shared.dtype, shared.shape) == (np.float32, (64, 64))
    assert shared.unsafe_buffer_pointer() == buffer.ptr
    assert (np.asarray(shared).ravel() == np.arange(4096)).all()
    del buffer, numbers, taken, made, shared
    gc.collect()
    assert settled() == before


def test_numba_takes_a_buffer():
    cuda = import_or_skip("numba.cuda")
    stream = gpupool.Stream()
    buffer = gpupool.empty(4096, stream)
    fill(buffer, 7, stream)
    array = cuda.as_cuda_array(buffer)
    assert (array.shape, array.dtype) == ((4096,), np.uint8)
    assert array.__cuda_array_interface__["data"][0] == buffer.ptr
    # Numba has waited for the buffer's stream.
    assert (array.copy_to_host() == 7).all()


@pytest.mark.alone
def test_empty_cache_gives_free_memory_back():
    stream = gpupool.Stream()
    stream.synchronize()
    gpupool.empty_cache()
    before = gpupool.memory_stats(0).reserved_bytes
    free, _ = cupy.cuda.runtime.memGetInfo()
    buffer = gpupool.empty(256 * MIB, stream)
    assert gpupool.memory_stats(0).reserved_bytes >= before + 256 * MIB
    assert cupy.cuda.runtime.memGetInfo()[0] <= free - 250 * MIB
    del buffer
    # Gone at once, or as soon as the GPU is done.
    gpupool.empty_cache()
    stream.synchronize()
    gpupool.empty_cache()
    assert gpupool.memory_stats(0).reserved_bytes == before
    assert cupy.cuda.runtime.memGetInfo()[0] >= free - 8 * MIB
