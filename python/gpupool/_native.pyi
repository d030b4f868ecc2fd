"""gpupool's compiled part."""

from collections.abc import Callable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Protocol, SupportsIndex, TypeAlias, final, type_check_only

__version__: str

cublas: HandlePool
cublaslt: HandlePool
cudnn: HandlePool
cudss: HandlePool
cusolver: HandlePool
cusparse: HandlePool
host: HandlePool

class Error(Exception):
    """Any error of gpupool."""

class RuntimeUnavailable(Error):
    """There is no GPU platform that the call needs: no driver, no device, or another runtime was chosen."""

class LibraryNotFound(Error):
    """A library could not be loaded. The message lists every place tried and what brings the library."""

class LibraryError(Error):
    """A library or the driver refused a call."""

    library: str
    function: str
    status: str
    code: int
    device: int | None
    path: str | None

class OutOfMemory(Error, MemoryError):
    """Device memory ran out while a handle was created, also after gpupool's own idle handles were destroyed."""

    library: str
    function: str
    status: str
    code: int
    device: int | None
    path: str | None

class Forked(Error):
    """The process was forked after the GPU was first used, and this is the child."""

class InvalidValue(Error, ValueError):
    """An argument that cannot be right."""

@type_check_only
class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

@type_check_only
class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

@type_check_only
class _CuPyStream(Protocol):
    @property
    def ptr(self) -> int: ...

@type_check_only
class _NumbaStream(Protocol):
    @property
    def handle(self) -> Any: ...

_StreamLike: TypeAlias = int | _CudaStream | _TorchStream | _CuPyStream | _NumbaStream

@final
class HandlePool:
    """All handles of one library in the process.

    ``HandlePool(name, create, destroy, set_stream=None)`` makes one for a library that gpupool does not know. Each
    function is a Python callable (``create() -> int``, ``destroy(handle)``, ``set_stream(handle, stream)``) or the
    address of a C function (``int create(void**)``, ``int destroy(void*)``, ``int set_stream(void*, void*)``, 0 being
    success). They run with the device's primary context current. Make a pool once: it lives as long as the process.
    """

    def __new__(
        cls,
        name: str,
        create: Callable[[], int] | int,
        destroy: Callable[[int], object] | int,
        set_stream: Callable[[int, int], object] | int | None = None,
    ) -> HandlePool: ...
    def handle(self, stream: _StreamLike | None = None, device: SupportsIndex | None = None) -> int:
        """This thread's handle, with the stream set.

        Without a stream it is the thread's current one (see :func:`stream`) on ``device``, or on the thread's current
        device. The handle stays this thread's until the thread ends: don't destroy it, and don't use it elsewhere.

        Raises LibraryNotFound, RuntimeUnavailable, LibraryError or OutOfMemory if a handle cannot be had, InvalidValue
        for a device or stream that cannot be right, Forked in a forked child.
        """

    def warm(self, count: int, device: SupportsIndex | None = None, background: bool = False) -> int:
        """Create as many handles as are missing for ``count`` to be idle on the device, and return how many that were.

        In the background it returns 0 at once; the handles, or a failure, show up in :meth:`stats`.
        """

    def trim(self, device: SupportsIndex | None = None) -> int:
        """Destroy the idle handles of a device, or of all, and return how many.

        cuBLAS, cuBLASLt, cuSOLVER and cuDSS wait for the whole device when a handle is destroyed, which spoils every
        capture on it. Of those, none is destroyed while a capture is known of: one on a :class:`Stream`, on this
        thread's current stream, or on any blocking stream. The driver does not tell of others, so don't trim while
        another library captures on a non-blocking stream of its own.
        """

    def close(self) -> int:
        """End a pool of one's own: no more handles, the idle ones and this thread's destroyed. Return how many.

        Those of other threads come back as they end, for :meth:`trim` to destroy.
        """

    def stats(self, device: SupportsIndex | None = None) -> HandleStats:
        """The pool's counts, on one device or summed over all."""

    @property
    def available(self) -> bool:
        """Whether handles can be asked for: the library can be loaded and its runtime is the one in use."""

    @property
    def version(self) -> tuple[int, int, int] | None:
        """The library's version as major, minor and patch; None for a pool of one's own."""

    @property
    def path(self) -> str | None:
        """The file the library was loaded from; None for a pool of one's own."""

    @property
    def name(self) -> str:
        """The pool's name."""

@final
class HandleStats:
    """A pool's counts at one moment."""

    @property
    def created(self) -> int:
        """Handles created so far."""

    @property
    def destroyed(self) -> int:
        """Handles destroyed so far, by trimming."""

    @property
    def idle(self) -> int:
        """Handles that no thread holds."""

    @property
    def held(self) -> int:
        """Handles that threads hold."""

    @property
    def hits(self) -> int:
        """Requests that the thread's own handle served."""

    @property
    def misses(self) -> int:
        """Requests that went to the pool."""

    @property
    def hand_overs(self) -> int:
        """Misses served by a handle that another thread had held, or that was made ahead of need."""

    @property
    def failures(self) -> int:
        """Requests and creations that failed."""

    @property
    def create_seconds(self) -> float:
        """Time spent creating handles, summed over threads."""

    @property
    def device_bytes(self) -> int:
        """Device memory that the handles took when they were created."""

    def as_dict(self) -> dict[str, int | float]:
        """The counts by name."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Stream:
    """A stream of one's own. It does not wait for the legacy default stream, and is destroyed with this object."""

    def __new__(cls, device: SupportsIndex | None = None) -> Stream: ...
    @property
    def ptr(self) -> int:
        """The stream's address: its CUstream or cudaStream_t."""

    @property
    def device(self) -> int:
        """The ordinal of the stream's device."""

    def query(self) -> bool:
        """Whether all work on the stream is done."""

    def synchronize(self) -> None:
        """Wait for all work on the stream."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol of cuda.core: version 0, then the address."""

@final
class StreamScope:
    """What :func:`stream` returns."""

    def __enter__(self) -> Any: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]: ...

@final
class ReplayResult:
    """What the replay of one trace took."""

    @property
    def peak_reserved(self) -> int:
        """The most bytes that the allocator had of the device at a time."""

    @property
    def driver_calls(self) -> int:
        """Calls that asked the driver for memory or gave some back, in the first pass."""

    @property
    def moved_pages(self) -> int:
        """Pages of device memory that were mapped to other addresses, in the first pass."""

    @property
    def cold_ns(self) -> float:
        """Nanoseconds an event in the first pass, which starts without memory."""

    @property
    def warm_ns(self) -> float:
        """Nanoseconds an event in later passes; their median."""

def replay(
    slots: bytes, sizes: bytes, streams: bytes, slot_count: int, threads: int, allocator: str
) -> ReplayResult: ...
def stream(s: _StreamLike) -> StreamScope:
    """``with gpupool.stream(s):`` makes ``s`` this thread's current stream, and its device the current one."""

def runtime() -> str:
    """The runtime in use, ``cuda`` or ``host``: that of ``GPUPOOL_RUNTIME``, else the first that has a device."""

def device_count() -> int:
    """How many devices the process sees."""

def current_device() -> int:
    """The ordinal of this thread's current device."""

def add_site_packages(folders: Sequence[str | PathLike[str]]) -> None: ...
def host_inject(call: str, kind: str = "other", after: int = 0, times: int = 1) -> None: ...
def host_clear_faults() -> None: ...
def host_set_create_cost(seconds: float) -> None: ...
def host_set_handle_bytes(nbytes: int) -> None: ...
def host_stream_of(handle: int) -> int: ...
def host_submit(stream: _StreamLike) -> int: ...
def host_complete(stream: _StreamLike, number: int) -> None: ...
def host_begin_capture(stream: _StreamLike) -> None: ...
def host_end_capture(stream: _StreamLike) -> None: ...
