"""Numba's pinned and mapped arrays in gpupool's pinned memory: every word of copies, and arrays that die early."""

import sys
from concurrent.futures import ThreadPoolExecutor

import gpupool
import numpy as np
from kernels import MIB, add, blocks, cuda, fill, manager, slow_copy

gpupool.numba.enable(pinned=True)


def live():
    """Return how many blocks of pinned memory are alive once Numba has freed what died, and the GPU is done."""
    manager().deallocations.clear()
    cuda.synchronize()
    gpupool.empty_cache()
    return gpupool.pinned_stats().live_blocks


def pattern(number, words):
    """Return words that tell where they are, and of which array."""
    return (np.arange(words, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(number)).view(np.int32)


def serve_one_thread_and_sixteen():
    words = 1 << 18

    def work(number):
        stream = cuda.stream()
        for turn in range(30):
            there, back = (cuda.pinned_array(words, np.int32) for _ in range(2))
            there[:] = pattern(number * 1000 + turn, words)
            one = cuda.to_device(there, stream=stream)
            # The copy may still read it.
            del there
            zero = cuda.device_array(words, np.int32, stream=stream)
            fill[blocks(zero), 256, stream](zero, 0)
            add[blocks(one), 256, stream](one, one, zero)
            one.copy_to_host(back, stream=stream)
            stream.synchronize()
            assert (back == pattern(number * 1000 + turn, words)).all(), f"thread {number}, turn {turn}"
        return True

    assert work(0), "one thread"
    with ThreadPoolExecutor(16) as executor:
        assert all(executor.map(work, range(32))), "a thread failed"
    assert live() == 0, "arrays are alive"


def are_used_by_kernels_in_place():
    array = cuda.mapped_array(10_000, np.int32)
    fill[blocks(array), 256](array, 7)
    cuda.synchronize()
    assert (array == 7).all(), "the host does not see what the kernel wrote"
    del array
    assert live() == 0, "the array is alive"


def may_die_while_a_kernel_uses_them():
    stream = cuda.stream()
    words = 8 * MIB
    out = cuda.device_array(words, np.int32)
    slow = cuda.device_array(1000, np.int32)
    for _ in range(3):
        array = cuda.pinned_array(words, np.int32)
        array[:] = pattern(5, words)
        slow_copy[blocks(slow), 256, stream](slow, slow, 50)
        out.copy_to_device(array, stream=stream)
        del array
        manager().deallocations.clear()
        # None of these is the memory that the copy has still to read.
        others = [cuda.pinned_array(words, np.int32) for _ in range(3)]
        for other in others:
            other[:] = 0
        stream.synchronize()
        assert (out.copy_to_host() == pattern(5, words)).all(), "memory was used again while a copy read it"
        del others, other


def are_not_pinned_twice():
    array = np.frombuffer(gpupool.empty_pinned(4 * MIB), np.int32)
    array[:] = pattern(9, array.size)
    with cuda.pinned(array):
        there = cuda.to_device(array)
    assert (there.copy_to_host() == pattern(9, array.size)).all(), "other words came back"
    with cuda.mapped(array) as mapped:
        fill[blocks(mapped), 256](mapped, 3)
        cuda.synchronize()
    assert (array == 3).all(), "the host does not see what the kernel wrote"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
