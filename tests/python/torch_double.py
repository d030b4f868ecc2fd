"""A stand-in for PyTorch, by the protocol of its allocators, over the double of its library."""

import contextlib
import ctypes
import itertools
import threading
from types import ModuleType, SimpleNamespace

DEVICE, STREAM, SIZE, ADDRESS, NUMBER = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_ulonglong,
)
FUNCTIONS = {
    "malloc": [SIZE, DEVICE, STREAM, ctypes.POINTER(ADDRESS)],
    "free": [ADDRESS, SIZE, DEVICE, STREAM],
    "record_stream": [ADDRESS, STREAM],
    "reset": [],
    "memory_fraction": [ctypes.c_double, DEVICE],
    "begin": [DEVICE, NUMBER, NUMBER],
    "end": [DEVICE, NUMBER, NUMBER],
    "release": [DEVICE, NUMBER, NUMBER],
}


class OutOfMemoryError(RuntimeError):
    """torch.OutOfMemoryError."""


class Allocator:
    """`torch._C._cuda_customAllocator`: calls the functions as PyTorch does."""

    def __init__(self, library, malloc, free):
        library.torch_make.restype = ADDRESS
        library.torch_make.argtypes = [ADDRESS, ADDRESS]
        library.torch_text.restype = ctypes.c_char_p
        self._library, self._address = library, library.torch_make(malloc, free)

    def __getattr__(self, name):
        if name.startswith("set_"):
            setter = self._library[f"torch_{name}"]
            setter.argtypes = [ADDRESS, ADDRESS]
            return lambda function: setter(self._address, function)
        function = self._library[f"torch_{name}"]
        function.argtypes = [ADDRESS, *FUNCTIONS[name]]
        return lambda *arguments: self._check(function(self._address, *arguments))

    def _check(self, answer):
        if answer:
            raise {1: OutOfMemoryError, 2: RuntimeError}[answer](self._library.torch_text().decode())

    def allocate(self, size, device=0, stream=None):
        """Return an address, or None."""
        address = ADDRESS()
        self.malloc(size, device, stream, ctypes.byref(address))
        return address.value


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
        self.library = ctypes.CDLL(str(folder / "lib" / "libc10_cuda.so"))
        self.version = SimpleNamespace(cuda="13.0")
        self.OutOfMemoryError = OutOfMemoryError
        self.backend = "native"
        self.allocator, self.is_used, self.streams, self.calls = None, False, {}, []
        self.local = threading.local()
        self._C = SimpleNamespace(
            _GLIBCXX_USE_CXX11_ABI=True,
            _cuda_getAllocatorBackend=lambda: self.backend,
            _cuda_customAllocator=lambda malloc, free: Allocator(self.library, malloc, free),
            _cuda_changeCurrentAllocator=self._change,
            _cuda_getCurrentRawStream=lambda device: self.streams.get(device, 0),
            _cuda_beginAllocateToPool=lambda *arguments: self.calls.append(("begin", *arguments)),
            _cuda_endAllocateToPool=lambda *arguments: self.calls.append(("end", *arguments)),
            _cuda_releasePool=lambda *arguments: self.calls.append(("release", *arguments)),
        )
        self.cuda = SimpleNamespace(
            MemPool=MemPool,
            device=self._device,
            use_mem_pool=self._use,
            empty_cache=lambda: self.calls.append("empty_cache"),
        )

    def _change(self, allocator):
        if self.is_used:
            raise RuntimeError("Can't swap an already initialized allocator")
        self.allocator, self.is_used = allocator, True

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
