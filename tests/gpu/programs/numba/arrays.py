"""Numba's kernels on arrays in gpupool's memory: in many threads, and on any stream."""

import sys
from concurrent.futures import ThreadPoolExecutor

import gpupool
import numpy as np
from cuda.core import Device
from kernels import (
    MIB,
    add,
    address,
    assert_reserved_nothing,
    blocks,
    cuda,
    fill,
    live,
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


if __name__ == "__main__":
    globals()[sys.argv[1]]()
