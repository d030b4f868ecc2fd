"""A stand-in for PyTorch, by the protocol of its allocators, of which pools take segments."""

import contextlib
import ctypes
import itertools
import threading
from types import ModuleType, SimpleNamespace

DEVICE, STREAM, SIZE, ADDRESS = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p


class OutOfMemoryError(RuntimeError):
    """torch.OutOfMemoryError."""


class Allocator:
    """`torch._C._cuda_customAllocator`: two functions, by their addresses."""

    def __init__(self, malloc, free):
        self._malloc = ctypes.CFUNCTYPE(ADDRESS, SIZE, DEVICE, STREAM)(malloc)
        self.free = ctypes.CFUNCTYPE(None, ADDRESS, SIZE, DEVICE, STREAM)(free)

    def allocate(self, size, device=0, stream=None):
        """Return an address, or None."""
        return self._malloc(size, device, stream)


TYPE = "N5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE"


class PluggableAllocator:
    """`torch._C._CUDAPluggableAllocator`: tells pybind11's protocol where its object is, if it is asked right."""

    def __init__(self, library, malloc, free):
        library.make.restype, library.make.argtypes = ADDRESS, [ADDRESS, ADDRESS]
        library.end.argtypes = [ADDRESS]
        self._library, self._address = library, library.make(malloc, free)

    def __del__(self):
        self._library.end(self._address)

    def _pybind11_conduit_v1_(self, platform, type_info, kind):
        assert (platform, kind) == (b"system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1", b"raw_pointer_ephemeral")
        point = ctypes.pythonapi.PyCapsule_GetPointer
        point.restype, point.argtypes = ADDRESS, [ctypes.py_object, ctypes.c_char_p]
        own_type = ctypes.addressof(ctypes.c_char.in_dll(self._library, f"_ZTI{TYPE}"))
        assert point(type_info, b"St9type_info") == own_type
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ADDRESS, ctypes.c_char_p, ADDRESS]
        self._name = TYPE.encode()
        return make(self._address, self._name, None)


class CachingAllocator:
    """PyTorch's own allocator, which is no pluggable one."""

    def _pybind11_conduit_v1_(self, platform, type_info, kind):
        return None


class Wrapped:
    """`torch.cuda.memory.CUDAPluggableAllocator`."""

    def __init__(self, inner):
        self._allocator = inner

    def allocator(self):
        return self._allocator


class MemPool:
    """`torch.cuda.MemPool`: one thread at a time may be in it. It keeps the segments that it takes."""

    numbers = itertools.count(1)

    def __init__(self, allocator=None, use_on_oom=False, no_split=False):
        self.allocator, self.use_on_oom, self.no_split = allocator, use_on_oom, no_split
        self._id, self.segments, self.inside = (0, next(self.numbers)), [], None

    @property
    def id(self):
        return self._id

    def take(self, size, device=0, stream=None):
        address = self.allocator.allocate(size, device, stream)
        if address is None:
            raise OutOfMemoryError("CUDA out of memory.")
        self.segments.append((address, size, device, stream))
        return address

    def __del__(self):
        for segment in self.segments:
            self.allocator.free(*segment)


class Torch(ModuleType):
    """The module."""

    def __init__(self, folder):
        super().__init__("torch")
        self.__version__, self.__file__ = "2.11.0+cu130", str(folder / "__init__.py")
        if (library := folder / "lib" / "libc10_cuda.so").exists():
            # PyTorch's library is in memory once it is imported.
            ctypes.CDLL(str(library))
        self.version = SimpleNamespace(cuda="13.0")
        self.OutOfMemoryError = OutOfMemoryError
        self.backend = "native"
        self.streams, self.calls = {}, []
        self.local = threading.local()
        self._C = SimpleNamespace(
            _GLIBCXX_USE_CXX11_ABI=True,
            _cuda_getAllocatorBackend=lambda: self.backend,
            _cuda_customAllocator=Allocator,
            _cuda_getCurrentRawStream=lambda device: self.streams.get(device, 0),
            _cuda_beginAllocateToPool=lambda *arguments: self.calls.append(("begin", *arguments)),
            _cuda_endAllocateToPool=lambda *arguments: self.calls.append(("end", *arguments)),
            _cuda_releasePool=lambda *arguments: self.calls.append(("release", *arguments)),
        )
        self.cuda = SimpleNamespace(
            MemPool=MemPool,
            device=self._device,
            current_device=lambda: 0,
            use_mem_pool=self._use,
            empty_cache=lambda: self.calls.append("empty_cache"),
        )

    @contextlib.contextmanager
    def _device(self, device):
        self.calls.append(("device", device))
        yield

    @contextlib.contextmanager
    def _use(self, pool, device=None):
        if pool.inside is not None:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        pool.inside = (threading.get_ident(), device)
        before, self.local.pool = getattr(self.local, "pool", None), pool
        try:
            yield
        finally:
            pool.inside, self.local.pool = None, before
