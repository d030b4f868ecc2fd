"""A summary names CuPy's own pool, and no longer once CuPy is on gpupool."""

import cupy
import gpupool


def device():
    (found,) = gpupool.memory_summary(0).devices
    return found


def main():
    gpupool.empty(1).free()
    assert device().frameworks == (), f"CuPy was not used yet: {device().frameworks}"
    kept = cupy.zeros(64 << 20, dtype=cupy.uint8)
    found = device()
    (told,) = found.frameworks
    expected = ("cupy", cupy.get_default_memory_pool().total_bytes())
    assert (told.framework, told.reserved_bytes) == expected, f"{told} is told, not {expected}"
    assert found.other_bytes >= told.reserved_bytes >= 64 << 20, f"the pool is no part of the others' bytes: {found}"
    del kept
    cupy.get_default_memory_pool().free_all_blocks()
    gpupool.cupy.enable()
    kept = cupy.zeros(64 << 20, dtype=cupy.uint8)
    found = device()
    assert found.frameworks == (), f"on gpupool CuPy has memory of its own: {found.frameworks}"
    assert found.live_bytes >= 64 << 20, f"the array is not in gpupool's memory: {found}"
    del kept


if __name__ == "__main__":
    main()
