"""Kernels that keep a stream busy: for some cycles, or until the test tells it to end, however slow the host is."""

import functools

import numpy as np
from gpu_helpers import cupy, import_or_skip
from waiting import LONG

SPIN = """
extern "C" __global__ void spin(long long cycles) {
  const long long end = clock64() + cycles;
  while (clock64() < end) {}
}
"""
UNTIL_TOLD = r"""
extern "C" __global__ void until_told(const volatile int* ends, long long most) {
  long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (!*ends && now - start < most);
}
"""


@functools.cache
def _spin():
    return cupy.RawKernel(SPIN, "spin")


def spin(cycles):
    """Keep CuPy's current stream busy for so many cycles. The first call loads the kernel."""
    _spin()((1,), (1,), (np.int64(cycles),))


class LongKernel:
    """Begins on CuPy's current stream. It ends by itself when a test has waited in vain, so that the test fails."""

    def __init__(self):
        self._kernel = cupy.RawKernel(UNTIL_TOLD, "until_told")
        self._ends = import_or_skip("cupyx").empty_pinned(1, np.int32)
        # Loaded before it is to run long, which loading may wait for.
        self.end()
        self._launch()
        cupy.cuda.runtime.deviceSynchronize()

    def _launch(self):
        self._kernel((1,), (1,), (np.intp(self._ends.ctypes.data), np.int64(LONG * 1e9 / 5)))

    def begin(self):
        self._ends[0] = 0
        self._launch()

    def end(self):
        self._ends[0] = 1
