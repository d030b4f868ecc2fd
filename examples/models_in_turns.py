"""Two models that take turns on one GPU, each asleep while the other works, checked bit for bit.

Each model has its weights in one gpupool pool and its working memory in another. Before a model's turn the other one is
put to sleep: its weights are copied to pinned host memory, its cache is discarded, and all its device memory is
released. The same work is done without sleep, and every result must be the same, bit for bit.

Run it with: python examples/models_in_turns.py [--mib 512] [--turns 6]

--mib is the size of each model's weights. It needs CuPy, unless devices are simulated (GPUPOOL_RUNTIME=host).
"""

import argparse
import ctypes
import sys
import time

import gpupool
import numpy as np

MIB = 1 << 20
WIDTH = 512


def arrays_of_cupy():
    """Return CuPy, and what makes an array in a pool."""
    import cupy

    def full(pool, shape, value):
        with gpupool.cupy.using(pool):
            return cupy.full(shape, value, dtype=cupy.float32)

    return cupy, full


def arrays_of_numpy():
    """Return NumPy, and what makes an array in a pool of a simulated device."""

    def full(pool, shape, value):
        with gpupool.use_mem_pool(pool):
            buffer = gpupool.empty(4 * int(np.prod(shape)))
        place = (ctypes.c_float * int(np.prod(shape))).from_address(buffer.ptr)
        place.buffer = buffer
        array = np.ctypeslib.as_array(place).reshape(shape)
        array[:] = value
        return array

    return np, full


class Model:
    """Layers whose weights change with each input, and a cache of what went through them."""

    def __init__(self, library, full, nbytes, seed):
        """Make the weights, in a pool of their own."""
        self.weights, self.cache = gpupool.MemPool(), gpupool.MemPool()
        self._library, self._full = library, full
        layers = max(2, nbytes // (4 * WIDTH * WIDTH))
        numbers = np.random.default_rng(seed)
        self._layers = []
        for _ in range(layers):
            layer = full(self.weights, (WIDTH, WIDTH), 0)
            layer[:] = library.asarray(numbers.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5)
            self._layers.append(layer)
        self._kept = [full(self.cache, (WIDTH,), 0) for _ in self._layers]

    def work(self, turn):
        """Run one input through the model, which changes its weights, and return the result."""
        values = self._library.full(WIDTH, 1 + turn, self._library.float32)
        for layer, kept in zip(self._layers, self._kept, strict=True):
            values = self._library.tanh(layer @ values)
            kept[:] = values
            layer += 1e-3 * kept
        return self._library.asarray(values).copy()

    def sleep(self):
        """Give the device's memory back: the weights are kept, the cache is given up."""
        return self.weights.sleep() + self.cache.sleep(backup=None)

    def wake(self):
        """Take the memory again."""
        return self.weights.wake() + self.cache.wake()


def run(library, full, nbytes, turns, sleeps):
    """Let two models work in turns, and return the results as bytes and the most memory that both had at a turn."""
    models = [Model(library, full, nbytes, seed) for seed in (1, 2)]
    results, most = [], 0
    if sleeps:
        models[1].sleep()
    for turn in range(turns):
        model, other = models[turn % 2], models[1 - turn % 2]
        if sleeps and turn:
            start = time.perf_counter()
            gone, taken = other.sleep(), model.wake()
            seconds = time.perf_counter() - start
            print(f"turn {turn}: {gone >> 20} MiB given back and {taken >> 20} MiB taken in {seconds * 1e3:.1f} ms")
        result = model.work(turn)
        results.append(bytes(result.get() if hasattr(result, "get") else result))
        pools = [pool for each in models for pool in (each.weights, each.cache)]
        most = max(most, sum(pool.stats().reserved_bytes for pool in pools))
    for model in models:
        model.wake()
    return results, most


def main():
    """Run the models without sleep and with it, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="the size of each model's weights")
    parser.add_argument("--turns", type=int, default=6, help="how many turns both have together")
    arguments = parser.parse_args()
    library, full = arrays_of_numpy() if gpupool.runtime() == "host" else arrays_of_cupy()
    expected, both = run(library, full, arguments.mib * MIB, arguments.turns, sleeps=False)
    found, one = run(library, full, arguments.mib * MIB, arguments.turns, sleeps=True)
    print(f"at most {both >> 20} MiB without sleep, {one >> 20} MiB with it")
    if found != expected:
        sys.exit("the results differ")
    print(f"all {len(found)} results are the same, bit for bit")


if __name__ == "__main__":
    main()
