"""The first use of gpupool, and another one, by each way to begin. Run with warnings that are errors, or none."""

import sys
import threading
import warnings

import gpupool

# Each takes no GPU's memory, and is the first to need a device.
FIRST = {
    "empty": lambda: gpupool.empty(10),
    "empty_pinned": lambda: gpupool.empty_pinned(10),
    "handle": lambda: gpupool.simulated.handle(),
    "MemPool": lambda: gpupool.MemPool(),
    "memory_stats": lambda: gpupool.memory_stats(),
    "Stream": lambda: gpupool.Stream(),
    "current_stream": lambda: gpupool.current_stream(),
    "runtime": lambda: gpupool.runtime(),
}


def main():
    """Tell which warnings come, and where they say that they come from."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        FIRST[sys.argv[1]]()
        for again in FIRST.values():
            again()
        thread = threading.Thread(target=gpupool.empty, args=(10,))
        thread.start()
        thread.join()
    for warning in seen:
        print(warning.category.__name__, warning.filename == __file__, warning.message)
    print(gpupool.runtime())


main()
