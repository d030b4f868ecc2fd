"""A trainer and a generator that share one model's weights and take turns, as in reinforcement learning.

The weights stay awake, because both use them. While the generator works, the trainer's state sleeps with a backup in
pinned host memory; while the trainer works, the generator's cache sleeps without one, because each round fills it
again. So the device holds the weights and the larger of the other two, rather than all three. The same rounds are run
without sleep, and the output, the weights and the trainer's state must be the same after them, bit for bit.

Run it with: python examples/train_and_generate.py [--mib 256] [--rounds 4]

--mib is the size of the weights; the trainer's state takes twice as much, and so does the cache. It needs CuPy, unless
devices are simulated (GPUPOOL_RUNTIME=host).
"""

import argparse
import sys
import time

import gpupool
import numpy as np
from models_in_turns import MIB, WIDTH, arrays_of_cupy, arrays_of_numpy

TOKENS = 16


class Program:
    """The weights, the trainer's state and the generator's cache, each in a pool of its own."""

    def __init__(self, library, full, nbytes):
        """Make all of them."""
        self.weights, self.state, self.cache = (gpupool.MemPool() for _ in range(3))
        self._library = library
        layers = max(2, nbytes // (4 * WIDTH * WIDTH))
        numbers = np.random.default_rng(7)
        shape = (WIDTH, WIDTH)
        self._layers = [full(self.weights, shape, 0) for _ in range(layers)]
        for layer in self._layers:
            layer[:] = library.asarray(numbers.standard_normal(shape, np.float32) / WIDTH**0.5)
        # The two moments of Adam.
        self._first = [full(self.state, shape, 0) for _ in range(layers)]
        self._second = [full(self.state, shape, 0) for _ in range(layers)]
        self._kept = [full(self.cache, (2 * WIDTH, WIDTH), 0) for _ in range(layers)]

    def generate(self, turn):
        """Return what some tokens become on their way through the layers, whose inputs the cache keeps."""
        values = self._library.full((WIDTH, TOKENS), 1 + turn, self._library.float32)
        for layer, kept in zip(self._layers, self._kept, strict=True):
            kept[:] = 0
            kept[:WIDTH, :TOKENS] = values
            values = self._library.tanh(layer @ kept[:WIDTH, :TOKENS])
        return values

    def train(self, values):
        """Change the weights by what was generated, as Adam does."""
        gradient = values @ values.T / TOKENS
        for layer, first, second in zip(self._layers, self._first, self._second, strict=True):
            first[:] = 0.9 * first + 0.1 * gradient
            second[:] = 0.99 * second + 0.01 * gradient * gradient
            layer -= 1e-3 * first / (self._library.sqrt(second) + 1e-6)

    def contents(self):
        """Return the weights and the trainer's state as bytes."""
        arrays = [*self._layers, *self._first, *self._second]
        return [bytes(array.get() if hasattr(array, "get") else array) for array in arrays]

    def reserved_bytes(self):
        """Return what the device has of all three."""
        return sum(pool.stats().reserved_bytes for pool in (self.weights, self.state, self.cache))


def run(library, full, nbytes, rounds, sleeps):
    """Generate and train in turns. Return all that came of it, and the most memory that there was at a turn."""
    program = Program(library, full, nbytes)
    generated, most = [], 0
    for turn in range(rounds):
        start = time.perf_counter()
        if sleeps:
            program.state.sleep()
            program.cache.wake()
        most = max(most, program.reserved_bytes())
        values = program.generate(turn)
        generated.append(bytes(values.get() if hasattr(values, "get") else values))
        if sleeps:
            program.cache.sleep(backup=None)
            program.state.wake()
        most = max(most, program.reserved_bytes())
        program.train(values)
        if sleeps:
            print(f"round {turn}: {(time.perf_counter() - start) * 1e3:.1f} ms")
    return generated + program.contents(), most


def main():
    """Run it without sleep and with it, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="the size of the weights")
    parser.add_argument("--rounds", type=int, default=4, help="how often both work")
    arguments = parser.parse_args()
    library, full = arrays_of_numpy() if gpupool.runtime() == "host" else arrays_of_cupy()
    expected, all_awake = run(library, full, arguments.mib * MIB, arguments.rounds, sleeps=False)
    found, most = run(library, full, arguments.mib * MIB, arguments.rounds, sleeps=True)
    print(f"at most {all_awake >> 20} MiB without sleep, {most >> 20} MiB with it")
    if found != expected:
        sys.exit("the results differ")
    print(f"all {arguments.rounds} rounds, the weights and the state are the same, bit for bit")


if __name__ == "__main__":
    main()
