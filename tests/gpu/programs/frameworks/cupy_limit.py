"""CuPy over gpupool with CUPY_GPU_MEMORY_LIMIT, 1% of the device: the limit is kept, and gone when it is disabled."""

import cupy
import gpupool
from errors import assert_says, raised


def main():
    gpupool.cupy.enable()
    total = cupy.cuda.runtime.memGetInfo()[1]
    error = raised(cupy.cuda.memory.OutOfMemoryError, cupy.empty, total // 50, dtype=cupy.uint8)
    assert_says(error, "limit set to")
    gpupool.cupy.disable()
    gpupool.cupy.enable()
    gpupool.cupy.disable()
    fraction = gpupool.get_per_process_memory_fraction()
    assert fraction == 1, f"disabled, the limit is {fraction} of the memory"


if __name__ == "__main__":
    main()
