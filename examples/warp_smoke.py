"""A fluid in Warp, as it is and with its memory from gpupool.

Each step of the program allocates the arrays that it computes in, and so do the steps that it captures into a graph: a
cloud of heat is carried around in a wind, and spreads. With gpupool the arrays come from a pool with a limit, whose
statistics tell what they took. The results of both are compared with each other and with NumPy.

Run it with: python examples/warp_smoke.py
It needs Warp: pip install warp-lang
"""

import time

import gpupool
import numpy as np
import warp as wp

SIZE, STEPS, REPLAYS = 512, 30, 10
WIND, SPREAD = (0.7, -0.4), 0.15


@wp.kernel
def carry(heat: wp.array2d[float], wind: wp.vec2, out: wp.array2d[float]):
    """Take each point's heat from where the wind has come from, between four points, around the ends."""
    i, j = wp.tid()
    size = heat.shape[0]
    x, y = float(i) - wind[0], float(j) - wind[1]
    left, low = wp.floor(x), wp.floor(y)
    right, up = x - left, y - low
    i0, j0 = (int(left) + size) % size, (int(low) + size) % size
    i1, j1 = (i0 + 1) % size, (j0 + 1) % size
    below = heat[i0, j0] * (1.0 - right) + heat[i1, j0] * right
    above = heat[i0, j1] * (1.0 - right) + heat[i1, j1] * right
    out[i, j] = below * (1.0 - up) + above * up


@wp.kernel
def spread(heat: wp.array2d[float], part: float, out: wp.array2d[float]):
    """Give a part of each point's heat to its four neighbours, around the ends."""
    i, j = wp.tid()
    size = heat.shape[0]
    around = heat[(i + 1) % size, j] + heat[(i + size - 1) % size, j]
    around += heat[i, (j + 1) % size] + heat[i, (j + size - 1) % size]
    out[i, j] = heat[i, j] * (1.0 - part) + around * part * 0.25


def step(heat):
    """Return the heat a step later, in a new array."""
    carried, out = wp.empty_like(heat), wp.empty_like(heat)
    wp.launch(carry, dim=heat.shape, inputs=[heat, wp.vec2(*WIND)], outputs=[carried])
    wp.launch(spread, dim=heat.shape, inputs=[carried, SPREAD], outputs=[out])
    return out


def step_on_cpu(heat):
    """Do on the CPU what the kernels do."""
    # The wind comes from less than a point to the left, and from less than one above.
    left, above = np.float32(WIND[0]), np.float32(-WIND[1])
    across = heat * (1 - left) + np.roll(heat, 1, 0) * left
    carried = across * (1 - above) + np.roll(across, -1, 1) * above
    around = sum(np.roll(carried, shift, axis) for shift in (-1, 1) for axis in (0, 1))
    return carried * np.float32(1 - SPREAD) + around * np.float32(SPREAD / 4)


def program(start):
    """Return the heat after steps one by one and as often from a graph, and the seconds that these took."""
    heat = wp.array(start, dtype=float)
    # Compiles the kernels.
    step(heat)
    wp.synchronize()
    seconds = -time.perf_counter()
    for _ in range(STEPS):
        heat = step(heat)
    with wp.ScopedCapture() as capture:
        later = heat
        for _ in range(STEPS // REPLAYS):
            later = step(later)
        wp.copy(heat, later)
    for _ in range(REPLAYS):
        wp.capture_launch(capture.graph)
    result = heat.numpy()
    return result, seconds + time.perf_counter()


def main():
    """Run the program on both kinds of memory, and print what each took."""
    wp.config.quiet = True
    with wp.ScopedDevice("cuda:0"):
        start = np.random.default_rng(42).random((SIZE, SIZE), np.float32)
        own, own_seconds = program(start)
        pool = gpupool.MemPool(limit=1 << 30)
        with gpupool.warp.using(pool):
            pooled, pooled_seconds = program(start)
    expected = start
    for _ in range(2 * STEPS):
        expected = step_on_cpu(expected)
    stats = pool.stats()
    print(f"{2 * STEPS} steps       Warp alone  with gpupool")
    print(f"seconds        {own_seconds:>10.4f}  {pooled_seconds:>12.4f}")
    print(f"largest error  {abs(own - expected).max():>10.1e}  {abs(pooled - expected).max():>12.1e}")
    print(f"the pool       {stats.peak_live_bytes >> 20} MiB live at once, {stats.peak_reserved_bytes >> 20} reserved")


if __name__ == "__main__":
    main()
