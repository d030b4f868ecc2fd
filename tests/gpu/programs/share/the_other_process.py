"""Attaches what it is told, and works on it: one order a line, one answer each.

use DEVICE           makes a device current, from then on
share NBYTES FIRST   shares words of the current device, the numbers from FIRST on, and answers with the token
attach HEX DEVICE    attaches a token for a device, and works there; -1 for the one that the buffer is on
reach HEX DEVICE     attaches a token for the device that the buffer is on, and works on this one, as its peer
count FIRST          says how many words are not the numbers from FIRST on
add                  adds one to every word
add-behind CYCLES    the same behind a kernel that runs so long, and does not wait for it
free                 frees the buffer, and waits for nothing
left                 says what is attached or live still, of all devices
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
        self.buffer = self.array = self.stream = self.gpu = None

    def use(self, device):
        cupy.cuda.Device(int(device)).use()
        return f"device {gpupool.current_device()}"

    def share(self, nbytes, first):
        self.gpu = cupy.cuda.Device().id
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.buffer = gpupool.empty(int(nbytes), self.stream)
        self.look()
        with self.stream:
            self.array[...] = cupy.arange(int(first), int(first) + self.array.size, dtype=cupy.uint64)
        return bytes(self.buffer.share(self.stream)).hex()

    def attach(self, token, device):
        device = int(device)
        self.gpu = max(device, 0)
        with cupy.cuda.Device(self.gpu):
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self.buffer = gpupool.attach(bytes.fromhex(token), self.stream, None if device < 0 else device)
        self.look()
        return f"{self.buffer.nbytes} bytes"

    def reach(self, token, device):
        self.gpu = int(device)
        # Its stream is the current one of the device that it is on, whichever is current.
        self.buffer = gpupool.attach(bytes.fromhex(token))
        assert self.buffer.device != self.gpu
        gpupool.enable_peer_access(self.buffer.device, self.gpu)
        # That waits for what was submitted before the buffer was shared.
        cupy.cuda.Device(self.buffer.device).synchronize()
        with cupy.cuda.Device(self.gpu):
            self.stream = cupy.cuda.Stream(non_blocking=True)
        self.look()
        return f"{self.buffer.nbytes} bytes"

    def look(self):
        """Have an array of the buffer, as of memory of the GPU that works on it: asarray would copy it there."""
        memory = cupy.cuda.UnownedMemory(self.buffer.ptr, self.buffer.nbytes, self.buffer, self.gpu)
        with cupy.cuda.Device(self.gpu):
            self.array = cupy.ndarray(self.buffer.nbytes // 8, cupy.uint64, cupy.cuda.MemoryPointer(memory, 0))

    def left(self):
        counts = [gpupool.memory_stats(device) for device in range(gpupool.device_count())]
        return f"{sum(each.attached_bytes for each in counts)} and {sum(each.live_bytes for each in counts)} bytes"

    def count(self, first):
        with cupy.cuda.Device(self.gpu), self.stream:
            expected = cupy.arange(int(first), int(first) + self.array.size, dtype=cupy.uint64)
            return f"{int(cupy.count_nonzero(self.array != expected))} wrong words"

    def add(self):
        with cupy.cuda.Device(self.gpu), self.stream:
            self.array += 1
            self.stream.synchronize()
        return "added"

    def add_behind(self, cycles):
        with cupy.cuda.Device(self.gpu), self.stream:
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
