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
miopen: HandlePool

def set_log_level(level: int) -> None:
    """Set the least level of records that are made, as ``logging`` numbers levels."""

def take_log_records() -> list[tuple[str, int, str, int, str, float, int]]:
    """Wait for records and take them all; none once the log has ended.

    A record is its logger, level, file, line, message, time in seconds since 1970, and thread as ``gettid`` numbers it.
    """

def clear_log_records() -> None:
    """Forget the records of the process that this one was forked from."""

def end_log() -> None:
    """End the log: once it has no more records, who waits for some gets none."""

class Error(Exception):
    """Any error of gpupool."""

class RuntimeUnavailable(Error):
    """There is no GPU platform that the call needs: no driver, no device, or another runtime was chosen."""

class LibraryNotFound(Error):
    """A library could not be loaded. The message lists every place tried and what brings the library.

    Of a pool's library ``library`` is the pool's name, ``tried`` each place with what was found there, ``remedy`` what
    brings it, and ``is_present`` whether a file was there that cannot be used, rather than none at all.
    """

    library: str
    tried: list[str]
    remedy: str
    is_present: bool

class LibraryError(Error):
    """A library or the driver refused a call."""

    library: str
    function: str
    status: str
    code: int
    device: int | None
    path: str | None

class OutOfMemory(MemoryError, Error):
    """Device memory ran out, also after gpupool gave back what it held and was not in use.

    ``requested_bytes`` is what was asked for, or what a handle is known to take; None if that is not known.
    ``free_bytes`` and ``total_bytes`` are the device's at the last try.
    """

    library: str
    function: str
    status: str
    code: int
    device: int
    path: str | None
    requested_bytes: int | None
    free_bytes: int
    total_bytes: int

class PoolExhausted(TimeoutError, Error):
    """All handles that a pool may have are in use, and stayed so for as long as the request could wait.

    ``holders`` tells who has them, a line each.
    """

    library: str
    device: int
    limit: int
    holders: list[str]

class Forked(Error):
    """The process was forked after the GPU was first used, and this is the child."""

class InvalidValue(ValueError, Error):
    """A mistake of the caller's: an argument that cannot be right, or a call at the wrong time."""

class Unavailable(Error):
    """The system, or a table of a fixed size, had no more to give: no thread, no descriptor, no number left."""

class InternalError(Error):
    """A fault of gpupool's own. Please report it."""

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
    success). They run with the device's primary context current. Make a pool once: it lives as long as the process,
    which can have 256; one more raises :class:`Unavailable`.
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

        Without a stream it is the thread's current one on ``device``, or on the thread's current device: that of
        :func:`stream`, else that of the framework that was enabled last, else the legacy default stream.

        The handle stays this thread's until the thread ends: don't destroy it, and don't use it elsewhere. Ask for it
        inside the capture of a graph, not before: what the graph needs of it, such as cuBLAS's workspace, is then the
        graph's own.

        Raises LibraryNotFound, RuntimeUnavailable, LibraryError or OutOfMemory if a handle cannot be had, InvalidValue
        for a device or stream that cannot be right, Forked in a forked child.
        """

    def lease(
        self,
        stream: _StreamLike | None = None,
        device: SupportsIndex | None = None,
        timeout: float | None = None,
    ) -> Lease:
        """``with pool.lease(stream) as handle:`` lends a handle for a block, with the stream set.

        So threads that seldom work at once need only as many handles as work at once. ``int(handle)`` is the handle.
        With a :attr:`limit` it waits up to ``timeout`` seconds, 30 by default, and then raises PoolExhausted; otherwise
        as :meth:`handle`.
        """

    @property
    def limit(self) -> int | None:
        """The most handles that there may be on each device; None for any number.

        Requests beyond it wait for a lease or a thread to end, in the order in which they came. Handles beyond a new
        limit stay.
        """

    @limit.setter
    def limit(self, value: int | None) -> None: ...
    def set_mem_pool(self, pool: MemPool | PoolToken | None, device: SupportsIndex | None = None) -> None:
        """Let the handles on the pool's device take what device memory they need from a :class:`MemPool`.

        None stands for plain memory of the driver again, on ``device`` or on all. cuDSS's handles can be told, by
        cudssSetDeviceMemHandler (https://docs.nvidia.com/cuda/cudss/functions.html).

        Handles take it from the next time on that they are asked for: then all that they allocate, in whichever thread
        and scope, also for objects made before. Where the pool has no more, the library's call fails
        (CUDSS_STATUS_ALLOC_FAILED). It can be changed at any time, as memory goes back to where it came from, in the
        order of the handle's stream: destroy cuDSS's objects while that stream lives. The MemPool is kept until another
        is set, and counts that in its :meth:`~MemPool.use_count`. A handler that a handle's owner sets himself stays
        until the handle has a new owner.

        Raises InvalidValue if the library cannot be told, or the MemPool was dropped or is another device's; else as
        :meth:`handle`.
        """

    def warm(self, count: int, device: SupportsIndex | None = None, background: bool = False) -> int:
        """Create as many handles as are missing for ``count`` to be idle on the device, and return how many that were.

        A :attr:`limit` is kept.
        In the background it returns 0 at once; the handles, or a failure, show up in :meth:`stats`. Raises
        :class:`Unavailable` if the system starts no thread.
        """

    def trim(self, device: SupportsIndex | None = None) -> int:
        """Destroy the idle and discarded handles of a device, or of all, and return how many.

        cuBLAS, cuBLASLt, cuSOLVER and cuDSS wait for the whole device when a handle is destroyed, which spoils every
        capture on it; MIOpen is taken to. Of those, none is destroyed while a capture is known of: one on a
        :class:`Stream`, on this thread's current stream, or on any blocking stream. The driver does not tell of others,
        so don't trim while another library captures on a non-blocking stream of its own.
        """

    def close(self) -> int:
        """End a pool of one's own: no more handles, the idle ones and this thread's destroyed. Return how many.

        Those of other threads come back as they end, for :meth:`trim` to destroy.
        """

    def stats(self, device: SupportsIndex | None = None) -> HandleStats:
        """The pool's counts, on one device or summed over all."""

    def reset_peak_stats(self, device: SupportsIndex | None = None) -> None:
        """Start the peaks of :meth:`stats` anew from what there is now, on one device or on all.

        :func:`reset_peak_memory_stats` does this for every pool, and for the peaks of memory.
        """

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
    def origin(self) -> str | None:
        """How that file was found; None for a pool of one's own.

        ``environment``: ``GPUPOOL_<NAME>_PATH`` names it. ``process``: other code had loaded it. ``wheel``: a pip
        wheel's folder. ``conda``: the ``lib`` folder of the environment. ``toolkit``: ``CUDA_HOME``, ``CUDA_PATH``,
        ``ROCM_PATH``, ``HIP_PATH`` or where the toolkit's installer puts it. ``system``: the dynamic linker, by
        ``LD_LIBRARY_PATH`` or the system's folders.
        """

    @property
    def loaded(self) -> bool:
        """Whether the library has been loaded, as it is when first needed. To ask loads nothing."""

    @property
    def name(self) -> str:
        """The pool's name."""

@final
class Lease:
    """A handle that is its holder's alone until the block ends; see :meth:`HandlePool.lease`.

    It may be used and ended in another thread than the one that asked for it, one thread at a time.
    """

    def __enter__(self) -> Lease: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> Literal[False]: ...
    def __int__(self) -> int:
        """The handle. Raises InvalidValue once the lease is over."""

    def __index__(self) -> int:
        """The same."""

    @property
    def device(self) -> int:
        """The device's ordinal."""

    def release(self) -> None:
        """End the lease, as the block's end does; again does nothing."""

    def discard(self) -> None:
        """End the lease of a handle that was changed beyond what the pool can set back.

        Nobody gets it again, and :meth:`HandlePool.trim` destroys it.
        """

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
    def retired(self) -> int:
        """Handles that were discarded and wait to be destroyed by trimming."""

    @property
    def idle(self) -> int:
        """Handles that nobody holds."""

    @property
    def held(self) -> int:
        """Handles that threads hold until they end."""

    @property
    def leased(self) -> int:
        """Handles that leases hold."""

    @property
    def peak_in_use(self) -> int:
        """The most handles that were in use at once, by threads or leases.

        Never too low. It is too high by handles that were used one after another where more lay idle than were needed,
        as after :meth:`HandlePool.warm` or :meth:`HandlePool.reset_peak_stats`. Of several devices it is the sum.
        """

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
    def waits(self) -> int:
        """Requests that waited for a handle, since there was a limit."""

    @property
    def failures(self) -> int:
        """Requests and creations that failed."""

    @property
    def create_seconds(self) -> float:
        """Time spent creating handles, summed over threads."""

    @property
    def device_bytes(self) -> int:
        """Device memory that the handles took when they were created."""

    @property
    def peak_device_bytes(self) -> int:
        """The most that those bytes were. Of several devices it is the sum."""

    @property
    def workspace_bytes(self) -> int:
        """Device memory that gpupool gave the handles, and graphs captured with them, to compute with.

        cuBLAS's workspaces: one for each stream of a handle, and one for each graph.
        """

    def as_dict(self) -> dict[str, int | float]:
        """The counts by name."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

def handle_stats(device: SupportsIndex | None = None) -> dict[str, HandleStats]:
    """The counts of every pool that has been used, by its name, on one device or summed over all."""

@final
class Stream:
    """A stream of one's own. It does not wait for the legacy default stream, and is destroyed with this object."""

    def __new__(cls, device: SupportsIndex | None = None) -> Stream: ...
    @property
    def ptr(self) -> int:
        """The stream's address: its CUstream, cudaStream_t or hipStream_t."""

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

_PoolId: TypeAlias = tuple[int, int]

@final
class DeviceBuffer:
    """Device memory, aligned to 512 bytes, freed in stream order when the object dies.

    Arrays of CuPy and PyTorch are made from it without a copy, by ``__cuda_array_interface__`` (version 3) or by
    ``__dlpack__``, as bytes of which they make what they like: ``torch.from_dlpack(buffer).view(torch.float32)``. The
    stream of a DLPack consumer waits for the buffer's, and the memory, once freed, for the consumer's. Simulated memory
    has ``__dlpack__`` alone and says that it is the CPU's, so that NumPy reads it.

    See https://dmlc.github.io/dlpack/latest/python_spec.html
    """

    @property
    def ptr(self) -> int:
        """The address; 0 for 0 bytes. Raises :class:`InvalidValue` once freed, as every attribute does."""

    @property
    def nbytes(self) -> int:
        """The bytes asked for."""

    @property
    def device(self) -> int:
        """The device's ordinal."""

    @property
    def stream(self) -> int:
        """The address of the stream on which it was allocated."""

    @property
    def pool_id(self) -> _PoolId:
        """The pool that it came from; ``(0, 0)`` is the device's default pool."""

    def record_stream(self, stream: _StreamLike) -> None:
        """Keep the memory, once freed, from being used again before this stream's work at that time is done.

        The stream must live until the buffer is freed. One of another device needs :func:`enable_peer_access`.
        """

    def free(self, stream: _StreamLike | None = None) -> None:
        """Free the memory now, after what was submitted to ``stream`` so far; by default to the buffer's own stream.

        Raises :class:`InvalidValue` if it was freed before, is shared by DLPack, or the stream is of a device that has
        no access; the buffer is then as it was.
        """

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

def empty(nbytes: SupportsIndex, stream: _StreamLike | None = None) -> DeviceBuffer:
    """Allocate device memory on the stream, not initialised; by default on this thread's current stream.

    It comes from the pool whose scope the thread is in, else from the device's default pool. Raises
    :class:`OutOfMemory` if there is not enough, also after everything that nobody uses was given back.
    """

@final
class MemPool:
    """A private pool of one device's memory.

    What a thread allocates in a ``with use_mem_pool(pool):`` block comes from the pool and goes back to it. When the
    pool dies, blocks that are alive stay valid; the rest goes back to the driver at once.
    """

    def __new__(
        cls,
        allocator: tuple[int, int]
        | tuple[Callable[[int, int, int], int], Callable[[int, int, int, int], Any]]
        | None = None,
        use_on_oom: bool = False,
        no_split: bool = False,
        limit: int | None = None,
        device: SupportsIndex | None = None,
        segments: bool = False,
    ) -> MemPool:
        """Make a pool; it takes no memory before it is used.

        ``allocator``: a pair ``malloc(size, device, stream) -> address``, ``free(address, size, device, stream)``,
        callables or addresses of C functions as PyTorch's pluggable allocators have them. What they allocate from
        gpupool themselves does not follow the thread's scopes. The pool keeps them as long as it has memory, so a
        callable that refers to the pool keeps it for ever: refer to ``pool.token()``. ``use_on_oom``: requests for
        the default pool may take free blocks of this one when the device has no more. ``no_split``: each block has a
        segment of its own. ``limit``: the most bytes to reserve. ``segments``: memory of ``cuMemAlloc`` (``hipMalloc``)
        rather than pages that can move.
        """

    @property
    def id(self) -> _PoolId:
        """``(0, n)``; never used twice."""

    @property
    def device(self) -> int:
        """The device's ordinal."""

    @property
    def allocator(self) -> Any:
        """The argument, or None."""

    @property
    def use_on_oom(self) -> bool:
        """The argument."""

    @property
    def no_split(self) -> bool:
        """The argument."""

    def use_count(self) -> int:
        """1 for the object, and 1 for each scope entered, each capture not reset, each library that takes from it."""

    @property
    def limit(self) -> int | None:
        """The most bytes to reserve. What is reserved beyond a new limit stays until it is freed and trimmed."""

    @limit.setter
    def limit(self, value: int | None) -> None: ...
    def stats(self) -> PoolStats:
        """What the pool holds and has done."""

    def reset_peak_stats(self) -> None:
        """Start the pool's peaks anew from what it holds now."""

    def trim(self) -> int:
        """Give free memory back and return the bytes that went. Pages that the GPU may still use go later."""

    def snapshot(self) -> list[dict[str, Any]]:
        """The pool's memory, block by block, as ``torch.cuda.memory_snapshot`` describes segments."""

    def token(self) -> PoolToken:
        """What lets another thread enter the pool: threads do not take over the scopes of those that start them."""

    def capture(self, stream: _StreamLike) -> Capture:
        """``with pool.capture(stream) as memory:`` around a graph's capture.

        What this thread allocates in the block is the graph's until ``memory.reset()``. An exception in the block
        releases everything.
        """

@final
class PoolToken:
    """Lets a thread enter a pool that another thread works in."""

    @property
    def id(self) -> _PoolId:
        """The pool's id."""

    @property
    def device(self) -> int:
        """The pool's device."""

@final
class PoolScope:
    """A pool that the thread's allocations go to for a ``with`` block; see :func:`use_mem_pool`."""

    def __enter__(self) -> MemPool | PoolToken: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> Literal[False]: ...

def use_mem_pool(pool: MemPool | PoolToken) -> PoolScope:
    """``with use_mem_pool(pool):`` routes what this thread allocates on the pool's device into the pool.

    Blocks nest, the innermost wins, and any number of threads may be in the same pool.
    """

@final
class Capture:
    """Allocations that become parts of a graph; see :meth:`MemPool.capture`."""

    def __enter__(self) -> GraphMemory: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> Literal[False]: ...

@final
class GraphMemory:
    """The memory of a captured graph, which nothing else is given until it is reset or dies."""

    @property
    def pool_id(self) -> _PoolId:
        """The pool's id."""

    def reset(self) -> None:
        """Let others use the memory: the graph is not replayed again."""

@final
class PoolStats:
    """What a pool holds and has done."""

    @property
    def live_bytes(self) -> int:
        """Bytes of blocks that are held, as cut: multiples of 512, small ones rounded up by at most an eighth."""

    @property
    def peak_live_bytes(self) -> int:
        """The most they were; with several threads, taken whenever one of them grows."""

    @property
    def requested_bytes(self) -> int:
        """The bytes asked for, of the same blocks."""

    @property
    def cached_bytes(self) -> int:
        """Bytes that are free for the next requests."""

    @property
    def releasing_bytes(self) -> int:
        """Bytes that go back to the driver once the GPU is done with them, or that a request is adding or moving."""

    @property
    def reserved_bytes(self) -> int:
        """Physical bytes: the sum of live, cached and releasing bytes."""

    @property
    def peak_reserved_bytes(self) -> int:
        """The most they were."""

    @property
    def live_blocks(self) -> int:
        """Blocks that are held."""

    @property
    def waiting_blocks(self) -> int:
        """Blocks that were freed and wait for other streams; they count as live."""

    @property
    def allocations(self) -> int:
        """Blocks handed out so far."""

    @property
    def frees(self) -> int:
        """Blocks that came back so far."""

    def as_dict(self) -> dict[str, int]:
        """The same by name."""

    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...

@final
class MemoryStats:
    """What a device's memory holds and has done, all pools together."""

    @property
    def live_bytes(self) -> int:
        """Bytes of blocks that are held, as cut: multiples of 512, small ones rounded up by at most an eighth."""

    @property
    def peak_live_bytes(self) -> int:
        """The most they were; with several threads, taken whenever one of them grows."""

    @property
    def requested_bytes(self) -> int:
        """The bytes asked for, of the same blocks."""

    @property
    def cached_bytes(self) -> int:
        """Bytes that are free for the next requests."""

    @property
    def releasing_bytes(self) -> int:
        """Bytes that go back to the driver once the GPU is done with them, or that a request is adding or moving."""

    @property
    def reserved_bytes(self) -> int:
        """Physical bytes: the sum of live, cached and releasing bytes."""

    @property
    def peak_reserved_bytes(self) -> int:
        """The most they were."""

    @property
    def live_blocks(self) -> int:
        """Blocks that are held."""

    @property
    def waiting_blocks(self) -> int:
        """Blocks that were freed and wait for other streams; they count as live."""

    @property
    def allocations(self) -> int:
        """Blocks handed out so far."""

    @property
    def frees(self) -> int:
        """Blocks that came back so far."""

    @property
    def driver_calls(self) -> int:
        """Calls of the driver's memory functions so far."""

    @property
    def moved_pages(self) -> int:
        """Pages of 2 MiB that were moved so far."""

    @property
    def pools(self) -> int:
        """How many pools there are, the default one among them."""

    def as_dict(self) -> dict[str, int]:
        """The same by name."""

    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...

@final
class OomCallback:
    """A callback that :func:`on_oom` registered, until it is removed or this object dies."""

    def remove(self) -> None:
        """Call it no more."""

@final
class CApi:
    """Addresses of C functions, for plugs that take them."""

    @property
    def malloc(self) -> int:
        """PyTorch's pluggable allocator: ``void *(ssize_t size, int device, cudaStream_t stream)``."""

    @property
    def free(self) -> int:
        """PyTorch's pluggable allocator: ``void (void *, ssize_t size, int device, cudaStream_t stream)``."""

    @property
    def cupy_malloc(self) -> int:
        """``cupy.cuda.CFunctionAllocator``: ``void *(void *, size_t size, int device)``."""

    @property
    def cupy_free(self) -> int:
        """``cupy.cuda.CFunctionAllocator``: ``void (void *, void *pointer, int device)``."""

    @property
    def handler_alloc(self) -> int:
        """A device memory handler of cuDSS or cuQuantum: ``int (void *, void **, size_t, cudaStream_t)``."""

    @property
    def handler_free(self) -> int:
        """The same: ``int (void *, void *, size_t, cudaStream_t)``."""

    @property
    def handler(self) -> int:
        """A whole ``cudssDeviceMemHandler_t``."""

    @property
    def capsule(self) -> Any:
        """A PyCapsule named ``gpupool.c_api`` that points to a version and the six functions."""

    def feed(self, pool: MemPool | PoolToken | None = None) -> tuple[int, int]:
        """A pair like :attr:`malloc` and :attr:`free`, for an allocator that keeps what it gets and cuts it itself.

        It allocates from this pool, or each device's default pool, whatever scopes the calling thread is in; null where
        there is no memory. It does what ``cudaMalloc`` and ``cudaFree`` would: the memory may be used on any stream at
        once, and what is freed is used again after all work on the device so far. It asks no :func:`on_oom` callback. A
        pool that was dropped gives null. Raises :class:`InvalidValue` if 64 pools have such functions.
        """

c_api: CApi

def empty_kept(nbytes: SupportsIndex, stream: _StreamLike, keeper: object | None) -> DeviceBuffer:
    """As :func:`empty`, for an adapter whose framework destroys the stream with the object ``keeper`` and not before.

    The buffer keeps that object, and so frees on a living stream: other streams use the memory sooner then. None for a
    stream that may be destroyed at any time.
    """

def fence(stream: _StreamLike) -> bool:
    """Let later work on the stream's device, on whichever stream, wait for all work so far; the host does not wait.

    So memory of ``stream`` that was used on streams nobody named may be freed. False, and nothing done, while a capture
    is known of, which this would spoil. Raises :class:`LibraryError` with drivers before CUDA 12.5.
    """

def graph_pool_handle(user_created: bool = True) -> _PoolId:
    """An id that no pool has yet, for :func:`begin_allocate_to_pool`."""

def begin_allocate_to_pool(device: SupportsIndex, pool_id: _PoolId) -> None:
    """Route this thread's allocations into the pool with this id, which is made if there is none; one use more."""

def end_allocate_to_pool(device: SupportsIndex, pool_id: _PoolId) -> None:
    """End what :func:`begin_allocate_to_pool` began, on the same thread."""

def release_pool(device: SupportsIndex, pool_id: _PoolId) -> None:
    """Take back one use of a pool; with the last its memory goes."""

def pool_use_count(device: SupportsIndex, pool_id: _PoolId) -> int | None:
    """The uses of a pool; None if there is no such pool."""

def empty_cache() -> int:
    """Give free memory of every pool back, also inside scopes, and return the bytes that went."""

def memory_stats(device: SupportsIndex | None = None) -> MemoryStats:
    """What a device's memory holds and has done."""

def reset_peak_memory_stats(device: SupportsIndex | None = None) -> None:
    """Start all peaks of a device anew from what there is now: those of its memory pools, and of handles there.

    Counters, as of allocations, are never reset.
    """

def memory_snapshot(device: SupportsIndex | None = None) -> dict[str, Any]:
    """The memory of every pool, block by block, of a device or of all, and what :func:`record_memory_history` recorded.

    It has the form of ``torch.cuda.memory._snapshot()``, which PyTorch's viewers read: ``segments`` with their blocks,
    ``device_traces`` with a list of events for each device, ``allocator_settings`` and ``external_annotations``. Sizes
    are in bytes, and in events those that were asked for; ``time_us`` counts from 1970. gpupool's own are ``thread`` in
    each event, as the operating system numbers it, and ``handle_events``: ``time_us``, ``library``, ``device``,
    ``action`` (``create``, ``take``, ``give_back``, ``discard``, ``destroy``), ``handle`` and ``thread``.

    All of it is of one moment: allocations on other threads wait meanwhile, about 0.1 us for each block and event.
    """

def record_memory_history(
    enabled: Literal["all", "state"] | None = "all",
    context: Literal["all", "alloc", "state"] | None = "all",
    stacks: Literal["python"] = "python",
    max_entries: SupportsIndex = ...,
    clear_history: bool = False,
    skip_actions: Sequence[str] | None = None,
) -> None:
    """Record what happens to memory and handles from now on, for :func:`memory_snapshot`. Touches no device.

    ``enabled``: ``"all"`` keeps events, ``"state"`` only the call stacks of blocks that are live, None ends recording
    and forgets everything. ``context``: whose call stacks to record: ``"state"`` those of live blocks' allocations,
    ``"alloc"`` also those of every allocation, ``"all"`` also those of every free, None no stacks. ``max_entries``
    (1,000,000): how many of the newest events to keep, of memory and of handles each, 64 bytes an event.
    ``clear_history`` forgets earlier events. ``skip_actions`` leaves out events by their ``action``.

    A stack is the innermost 64 Python frames of a thread that holds the GIL. PyTorch's operators let go of it before
    they allocate, so their events have no frames. Called again, it changes the settings. Raises :class:`InvalidValue`
    for a setting that there is not. The parameters are those of ``torch.cuda.memory._record_memory_history``.
    """

def on_oom(callback: Callable[[int, int], Any]) -> OomCallback:
    """Call ``callback(device, nbytes)`` when memory has run out; it answers whether it freed any."""

def set_per_process_memory_fraction(fraction: float, device: SupportsIndex | None = None) -> None:
    """Reserve at most this part, 0 to 1, of the device's memory."""

def get_per_process_memory_fraction(device: SupportsIndex | None = None) -> float:
    """The part that was set; 1 if none was."""

def enable_peer_access(device: SupportsIndex, peer: SupportsIndex) -> None:
    """Let ``peer`` read and write the memory that gpupool has on ``device``, now and later."""

def torch_functions(address_of: Callable[[str], int]) -> dict[str, int]:
    """Addresses of C functions for PyTorch's pluggable allocator, by the names of the setters that take them.

    ``address_of(symbol)`` answers where a symbol of PyTorch's own library is; see :mod:`gpupool.torch`.
    """

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
    slots: bytes,
    sizes: bytes,
    streams: bytes,
    slot_count: int,
    threads: int,
    allocator: str,
    watch: Callable[[float], object] | None = None,
) -> ReplayResult:
    """``watch`` is called about ten times a second with the part that is done, 0 to 1. What it raises, or Ctrl-C, ends
    the replay.
    """

def replay_reserved(
    slots: bytes,
    sizes: bytes,
    streams: bytes,
    slot_count: int,
    most: int,
    allocator: str,
    watch: Callable[[float], object] | None = None,
) -> list[tuple[int, int]]:
    """Replay once, without timing, and tell what the allocator had reserved: (event, bytes after it) at each change.

    There are at most so many: if it changed more often, the least, the most and the last of each of equal parts.
    """

def stream(s: _StreamLike) -> StreamScope:
    """``with gpupool.stream(s):`` makes ``s`` this thread's current stream, and its device the current one."""

def set_stream_source(source: Callable[[int], int] | None) -> Callable[[int], int] | None:
    """Choose what names a thread's current stream, outside of :func:`stream`: ``source(device) -> address``, 0 for the
    default one. Returns what chose it before; None stands for the legacy default stream. Frameworks' adapters set it.
    """

def runtime() -> str:
    """The runtime in use, ``cuda`` or ``host``: that of ``GPUPOOL_RUNTIME``, else the first that has a device."""

def driver_version() -> tuple[int, int] | None:
    """The CUDA version that the driver supports, or HIP's, as major and minor; None for simulated devices."""

def device_info(device: SupportsIndex) -> dict[str, Any]:
    """What the driver tells of a device. It makes no context.

    ``name``, ``uuid``, ``compute_capability`` (major and minor), ``pci_bus_id``, ``is_mig``, ``total_bytes`` and
    ``free_bytes``; None for what a device does not have, and for free bytes where the process has no context there.
    """

def runtimes_passed_over() -> list[tuple[str, str, bool]]:
    """Each platform that the choice of the runtime passed over, why, and whether it is there but does not work."""

def device_count() -> int:
    """How many devices the process sees."""

def current_device() -> int:
    """The ordinal of this thread's current device."""

def set_memory_limit(fraction: float | None, nbytes: int | None) -> tuple[float | None, int | None]:
    """Reserve at most so much on each device, those used later too, without asking any driver. Returns the former."""

def devices_in_use() -> list[int]:
    """The devices whose memory the process has used, or on which it has made handles, by ordinal. Asks no driver."""

def summarize(device: SupportsIndex | None = None) -> dict[str, Any]:
    """What holds a device's memory, for :func:`gpupool.memory_summary`."""

def add_site_packages(folders: Sequence[str | PathLike[str]]) -> None: ...
def simulate_costly_handles(create_seconds: float, nbytes: int) -> None: ...

# Only in builds with the feature fault-injection, for gpupool's own tests.
def host_inject(call: str, kind: str = "other", after: int = 0, times: int = 1) -> None: ...
def host_clear_faults() -> None: ...
def host_set_create_cost(seconds: float) -> None: ...
def host_set_handle_bytes(nbytes: int) -> None: ...
def host_stream_of(handle: int) -> int: ...
def host_create_stream(device: int) -> int: ...
def host_destroy_stream(stream: _StreamLike) -> None: ...
def host_submit(stream: _StreamLike) -> int: ...
def host_complete(stream: _StreamLike, number: int) -> None: ...
def host_begin_capture(stream: _StreamLike) -> None: ...
def host_end_capture(stream: _StreamLike) -> None: ...
