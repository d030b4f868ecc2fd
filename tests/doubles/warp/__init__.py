"""A double of Warp 1.19 on gpupool's simulated devices: what its arrays, streams and graphs do with allocators.

It has the rules of Warp's own: an allocator is asked for more than 0 bytes, with the device's context current; what an
array frees is what it got, of the allocator that it got it from; the stream of a device is one for all threads; graphs
are known to the device from the beginning of their capture to its end. No kernel runs: `submit` stands for work.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from gpupool import _native

__version__ = "1.19.0"


class ContextGuard:
    """What makes a device's context current for a block."""

    def __init__(self):
        self.depth, self.entered = 0, 0

    def __enter__(self):
        self.depth += 1
        self.entered += 1

    def __exit__(self, *_):
        self.depth -= 1


class CudaDefaultAllocator:
    """The driver's memory, whose addresses no one else has."""

    deallocate_requires_context_guard = True

    def __init__(self, first):
        self.next, self.live = first, {}

    def allocate(self, size_in_bytes):
        self.next += 1 << 30
        self.live[self.next] = size_in_bytes
        return self.next

    def deallocate(self, ptr, size_in_bytes):
        assert self.live.pop(ptr) == size_in_bytes


class CudaMempoolAllocator(CudaDefaultAllocator):
    """The same of the driver's pool."""


class Stream:
    """A stream: a blocking one of its own, which ends with the object, or another's."""

    def __init__(self, device=None, **named):
        self.device = get_device(device)
        self.owner = "cuda_stream" not in named
        if self.owner:
            self.cuda_stream = _native.host_create_stream(self.device.ordinal, True)
        else:
            self.cuda_stream = named["cuda_stream"]

    def __del__(self):
        # Warp's own does nothing either once its functions are gone, as the interpreter ends.
        if getattr(self, "owner", False) and _native is not None:
            _native.host_destroy_stream(self.cuda_stream)

    @property
    def is_capturing(self):
        return _native.is_captured(self.cuda_stream or 0)

    def __cuda_stream__(self):
        return 0, self.cuda_stream or 0

    def submit(self):
        """Let the stream work, until it is told that this is done."""
        return _native.host_submit(self.cuda_stream)


class Device:
    """A device, with its current stream and its allocators."""

    def __init__(self, ordinal):
        self.ordinal, self.alias = ordinal, f"cuda:{ordinal}"
        self.context_guard = ContextGuard()
        self.captures = {}
        self.default_allocator = CudaDefaultAllocator((1 + 2 * ordinal) << 60)
        self.mempool_allocator = CudaMempoolAllocator((2 + 2 * ordinal) << 60)
        self.current_allocator = self.mempool_allocator
        self._custom_allocator = None
        self._stream = None

    def __str__(self):
        return self.alias

    @property
    def stream(self):
        if self._stream is None:
            self._stream = Stream(self)
        return self._stream

    def set_stream(self, stream):
        assert stream.device is self
        self._stream = stream

    def get_allocator(self, pinned=False):
        return self.current_allocator if self._custom_allocator is None else self._custom_allocator


class array:
    """Bytes on a device, which they are freed on when it dies."""

    def __init__(self, nbytes, device):
        self.ptr, self.capacity, self.device = None, nbytes, device
        allocator = device.get_allocator()
        self.deleter = allocator.deallocate
        if nbytes:
            with device.context_guard:
                self.ptr = allocator.allocate(nbytes)
            assert type(self.ptr) is int
            assert self.ptr
        self._allocator = allocator

    def __del__(self):
        if self.ptr is None:
            return
        try:
            if getattr(self._allocator, "deallocate_requires_context_guard", True):
                with self.device.context_guard:
                    self.deleter(self.ptr, self.capacity)
            else:
                self.deleter(self.ptr, self.capacity)
        except (TypeError, AttributeError):
            # What it calls is gone, as the interpreter ends.
            if _native is not None:
                raise


class Graph:
    """A captured graph."""

    def __init__(self, device):
        self.device = device


class ScopedStream:
    """A block with another current stream of a device."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        self.former = self.stream.device.stream
        self.stream.device.set_stream(self.stream)
        return self.stream

    def __exit__(self, *_):
        self.stream.device.set_stream(self.former)


class ScopedAllocator:
    """A block with another allocator of a device."""

    def __init__(self, device, allocator):
        self.device, self.allocator = get_device(device), allocator

    def __enter__(self):
        self.saved, self.device._custom_allocator = self.device._custom_allocator, self.allocator
        return self

    def __exit__(self, *_):
        self.device._custom_allocator = self.saved


class ScopedCapture:
    """A block whose work becomes ``graph``."""

    def __init__(self, device=None):
        self.device, self.graph = get_device(device), None

    def __enter__(self):
        capture_begin(self.device)
        return self

    def __exit__(self, *_):
        self.graph = capture_end(self.device)


# Made when Warp is initialized, as long as it is imported.
_runtime = SimpleNamespace(devices=None)


def init():
    """Find the devices, once."""
    if _runtime.devices is None:
        _runtime.devices = [Device(ordinal) for ordinal in range(_native.device_count())]


def get_cuda_devices():
    """Return the devices."""
    init()
    return _runtime.devices


def get_cuda_device(ordinal):
    """Return a device by its number."""
    return get_cuda_devices()[ordinal]


def get_device(device=None):
    """Return a device by its name, or itself, or the first."""
    if isinstance(device, Device):
        return device
    return get_cuda_device(int(device.partition(":")[2]) if device else 0)


def set_device_allocator(device, allocator):
    """Set the allocator of a device; None for Warp's own."""
    assert allocator is None or (callable(allocator.allocate) and callable(allocator.deallocate))
    get_device(device)._custom_allocator = allocator


def set_cuda_allocator(allocator):
    """Set the allocator of all devices."""
    for device in get_cuda_devices():
        set_device_allocator(device, allocator)


def get_device_allocator(device):
    """Return the allocator that a device's arrays come from."""
    return get_device(device).get_allocator()


def empty(nbytes, device=None):
    """Return an array of so many bytes."""
    return array(nbytes, get_device(device))


def capture_begin(device=None):
    """Begin to capture the device's stream."""
    device = get_device(device)
    _native.host_begin_capture(device.stream.cuda_stream)
    device.captures[device.stream] = Graph(device)


def capture_end(device=None):
    """End the capture, and return the graph."""
    device = get_device(device)
    graph = device.captures.pop(device.stream)
    _native.host_end_capture(device.stream.cuda_stream)
    return graph


@contextmanager
def capture_paused(device=None) -> Iterator[None]:
    """Let the capture be unknown for a block, as Warp does while the body of a loop is captured."""
    device = get_device(device)
    graph = device.captures.pop(device.stream)
    yield
    device.captures[device.stream] = graph
