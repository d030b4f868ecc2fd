"""Another process on the device: for each line it is sent it wakes, adds to its array, checks it and sleeps again."""

import sys

import cupy
import gpupool


def main():
    nbytes = int(sys.argv[1])
    pool, array = gpupool.MemPool(), None
    for turn, _ in enumerate(sys.stdin, 1):
        pool.wake()
        if array is None:
            with gpupool.cupy.using(pool):
                array = cupy.arange(nbytes // 8, dtype=cupy.uint64)
        array += 1
        expected = cupy.arange(turn, turn + array.size // 64, dtype=cupy.uint64)
        wrong = int(cupy.count_nonzero(array[: expected.size] != expected))
        last = cupy.arange(turn + array.size - expected.size, turn + array.size, dtype=cupy.uint64)
        wrong += int(cupy.count_nonzero(array[-last.size :] != last))
        del expected, last
        pool.sleep()
        cupy.get_default_memory_pool().free_all_blocks()
        print(f"turn {turn}: {wrong} wrong words", flush=True)


if __name__ == "__main__":
    main()
