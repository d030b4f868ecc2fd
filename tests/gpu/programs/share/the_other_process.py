"""Attaches what it is told, and works on it: one order a line, one answer each.

attach HEX DEVICE    attaches a token for a device; -1 for the one that the buffer is on
count FIRST          says how many words are not the numbers from FIRST on
add                  adds one to every word
add-behind CYCLES    the same behind a kernel that runs so long, and does not wait for it
free                 frees the buffer, and waits for nothing
"""

import sys

import cupy
import gpupool

SPIN = cupy.RawKernel(
    r"""
extern "C" __global__ void spin(long long cycles) {
  long long start = clock64();
  while (clock64() - start < cycles) {}
}
""",
    "spin",
)


class Worker:
    def __init__(self):
        self.buffer = self.array = self.stream = None

    def attach(self, token, device):
        device = int(device)
        gpu = None if device < 0 else device
        with cupy.cuda.Device(max(device, 0)):
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self.buffer = gpupool.attach(bytes.fromhex(token), self.stream, gpu)
            # As memory of this GPU, whichever it is on: asarray would copy it here.
            memory = cupy.cuda.UnownedMemory(self.buffer.ptr, self.buffer.nbytes, self.buffer, max(device, 0))
            self.array = cupy.ndarray(self.buffer.nbytes // 8, cupy.uint64, cupy.cuda.MemoryPointer(memory, 0))
        return f"{self.buffer.nbytes} bytes"

    def count(self, first):
        with cupy.cuda.Device(self.buffer.device), self.stream:
            expected = cupy.arange(int(first), int(first) + self.array.size, dtype=cupy.uint64)
            return f"{int(cupy.count_nonzero(self.array != expected))} wrong words"

    def add(self):
        with cupy.cuda.Device(self.buffer.device), self.stream:
            self.array += 1
            self.stream.synchronize()
        return "added"

    def add_behind(self, cycles):
        with cupy.cuda.Device(self.buffer.device), self.stream:
            # Loaded before, which may take as long as the kernel runs.
            SPIN((1,), (1,), (0,))
            self.array += 0
            SPIN((1,), (1,), (int(cycles),))
            self.array += 1
        return "submitted"

    def free(self):
        self.array = None
        self.buffer.free(self.stream)
        return "freed"


worker = Worker()
for line in sys.stdin:
    order, *arguments = line.split()
    try:
        print(getattr(worker, order.replace("-", "_"))(*arguments), flush=True)
    except gpupool.Error as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
