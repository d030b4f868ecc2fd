"""What tests of pools share: an allocator of one's own, a limit to the byte, work on a stream, and other threads."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import gpupool
from gpupool import _native

MIB = 1 << 20
# cudaStreamLegacy.
LEGACY = 1


class Allocator:
    """Makes addresses up, and takes back what it gave, once and with the size asked for."""

    def __init__(self, first=1 << 44):
        self.calls, self.live, self.next = [], {}, first

    def malloc(self, size, device, stream):
        address = self.next
        self.next += 1 << 30
        self.live[address] = size
        self.calls.append((size, device, stream))
        return address

    def free(self, address, size, device, stream):
        assert self.live.pop(address) == size

    def pool(self, **arguments):
        return gpupool.MemPool((self.malloc, self.free), **arguments)


def c_functions(malloc, free, kind=ctypes.CFUNCTYPE):
    """Return functions of C that allocate and free, called without the GIL, or by PYFUNCTYPE with it."""
    return (
        kind(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(malloc),
        kind(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(free),
    )


def leave(nbytes):
    """Let this many bytes be reserved beyond what is, and no more."""
    gpupool.set_per_process_memory_fraction(1.0)
    try:
        gpupool.empty(1 << 62)
    except gpupool.OutOfMemory as error:
        total = error.total_bytes
    gpupool.set_per_process_memory_fraction((gpupool.memory_stats().reserved_bytes + nbytes) / total)


class Work:
    """Work on the legacy default stream, which is done when it is told to be, or once the host waits for it.

    On a GPU that stream is behind blocking streams, too; simulated ones are in no order with it. Ask twice at most.
    """

    def __init__(self):
        other = gpupool.Stream()
        pools = gpupool.MemPool(), gpupool.MemPool()
        buffers = [pool.empty(3 * MIB, other) for pool in pools]
        self.number = _native.host_submit(LEGACY)
        # What is freed behind it, another stream gets once it is done.
        self.freed = [(pool, other, buffer.ptr) for pool, buffer in zip(pools, buffers, strict=True)]
        for buffer in buffers:
            buffer.free(LEGACY)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _native.host_complete(LEGACY, self.number)

    def is_done(self):
        pool, other, address = self.freed.pop()
        return pool.empty(3 * MIB, other).ptr == address


def allocate_in(pool, nbytes, stream=None):
    with gpupool.use_mem_pool(pool):
        return gpupool.empty(nbytes, stream)


@contextmanager
def capturing(pool, stream):
    """Capture the stream into the pool, which nothing in the block may spoil."""
    _native.host_begin_capture(stream)
    try:
        with pool.capture(stream) as memory:
            yield memory
    finally:
        _native.host_end_capture(stream)


@contextmanager
def other_thread():
    """Give a function that runs another one on a second thread, always the same, and answers what that returns."""
    with ThreadPoolExecutor(1) as executor:
        yield lambda work, *arguments: executor.submit(work, *arguments).result()


@contextmanager
def entered_elsewhere(*scopes):
    """Enter the scopes on another thread meanwhile, and give a function that does work there."""
    with other_thread() as run:
        for scope in scopes:
            run(scope.__enter__)
        try:
            yield run
        finally:
            for scope in reversed(scopes):
                run(scope.__exit__, None, None, None)
