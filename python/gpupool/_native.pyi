"""The compiled part of gpupool."""

from collections.abc import Callable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Never, Self, SupportsIndex, final

from _typeshed import ReadableBuffer, SupportsRead, WriteableBuffer
from typing_extensions import disjoint_base

from gpupool.typing import AllocatorLike, DeviceLike, PoolId, StreamLike

__version__: str

cublas: HandlePool
cublaslt: HandlePool
cudnn: HandlePool
cudss: HandlePool
cusolver: HandlePool
cusparse: HandlePool
hipblas: HandlePool
hipblaslt: HandlePool
hipsolver: HandlePool
hipsparse: HandlePool
host: HandlePool
miopen: HandlePool

def set_log_level(level: int) -> None:
    """Set the lowest level of the records that are made, as ``logging`` numbers levels."""

def take_log_records() -> list[tuple[str, int, str, int, str, float, int]]:
    """Wait for log records and return all there are; an empty list means that the log has ended.

    A record is its logger, level, file, line, message, time in seconds since 1970, and thread as ``gettid`` numbers it.
    """

def clear_log_records() -> None:
    """Forget the log records that a forked child took over from its parent."""

def end_log() -> None:
    """End the log: :func:`take_log_records` returns the records that are left, and then empty lists."""

class Error(Exception):
    """The base class of gpupool's errors.

    >>> try:
    ...     gpupool.empty(1 << 60)
    ... except gpupool.Error as error:
    ...     print(type(error).__name__)
    OutOfMemory
    """

class RuntimeUnavailable(Error):
    """The GPU platform that a call needs is missing: no driver, no device, or another runtime was chosen."""

class LibraryNotFound(Error):
    """A library could not be loaded. The message lists every place tried and what brings the library.

    Where it is a pool's library, ``library`` is the pool's name, ``tried`` lists each place with what was found there,
    ``remedy`` says what brings the library, and ``is_present`` is True if a file was there that cannot be used.
    """

    library: str
    tried: list[str]
    remedy: str
    is_present: bool

class LibraryError(Error):
    """A library or the driver refused a call.

    ``library`` is the library's name, ``cuda`` or ``hip`` for the driver; ``function`` what was called; ``status`` and
    ``code`` what it answered, by name and as a number; ``device`` the device's ordinal, and ``path`` the file that the
    library was loaded from, None where there is none.
    """

    library: str
    function: str
    status: str
    code: int
    device: int | None
    path: str | None

class OutOfMemory(MemoryError, Error):
    """Memory ran out, even after gpupool had returned all of its memory that was not in use; also a ``MemoryError``.

    The message says who holds the device's memory, and what helps: a higher limit where a limit refused, memory that
    is freed elsewhere where the device has no more.

    ``requested_bytes`` is the number of bytes that the program asked for, or that a handle is known to take; None if
    that is not known. ``free_bytes`` and ``total_bytes`` are the device's at the last try. The rest is as in
    :class:`LibraryError`.

    >>> pool = gpupool.MemPool(limit=1 << 20)
    >>> try:
    ...     pool.empty(8 << 20)
    ... except gpupool.OutOfMemory as error:
    ...     print(error.requested_bytes)
    8388608
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
    """All handles that a pool may have stayed in use for as long as the request could wait; also a ``TimeoutError``.

    ``library`` is the pool's name, ``device`` the device's ordinal, ``limit`` the pool's :attr:`HandlePool.limit`, and
    ``holders`` has a line for each thread or lease that has a handle.
    """

    library: str
    device: int
    limit: int
    holders: list[str]

class Forked(Error):
    """The process is the child of a fork that came after the GPU was first used.

    Neither CUDA nor HIP works there: start processes by ``spawn`` or ``forkserver``, or fork before the first use. See
    https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods
    """

class InvalidValue(ValueError, Error):
    """A mistake of the caller's: an argument that cannot be right, or a call at the wrong time. Also a ``ValueError``.

    >>> try:
    ...     gpupool.empty(-1)
    ... except ValueError as error:
    ...     print(error)
    -1 is out of range: give 0 to 2**64 - 1
    """

class Asleep(Error):
    """The request is to a pool that is asleep: wake it first, by its ``wake()`` or by :func:`wake`."""

class Unavailable(Error):
    """The system, or a table of a fixed size, had no more to give: no thread, no descriptor, no number left."""

class InternalError(Error):
    """A fault of gpupool's own. Please report it."""

@final
class HandlePool:
    """The pool of one library's handles in this process.

    ``HandlePool(name, create, destroy, set_stream=None)`` makes a pool for a library that gpupool does not know. Each
    function is a Python callable (``create() -> int``, ``destroy(handle)``, ``set_stream(handle, stream)``) or the
    address of a C function (``int create(void**)``, ``int destroy(void*)``, ``int set_stream(void*, void*)``, where 0
    means success). The functions run with the device's primary context current. Make a pool once: it lives as long as
    the process, which can have 256 pools; one more raises :class:`Unavailable`.

    The pools of libraries that gpupool knows are made: ``gpupool.cublas``, ``cublaslt``, ``cudnn``, ``cudss``,
    ``cusolver`` and ``cusparse``, on ROCm ``hipblas``, ``hipblaslt``, ``hipsolver``, ``hipsparse`` and ``miopen``, and
    on simulated devices ``gpupool.host``, which the examples use.

    >>> handle = gpupool.host.handle()  # this thread's own, as gpupool.cublas.handle() on a GPU
    >>> with gpupool.host.lease() as lease:  # one for this block
    ...     print(int(lease) == handle)
    False

    Args:
        name: The pool's name, in errors and statistics.
        create: Makes a handle and returns it, an address or another number but 0.
        destroy: Destroys a handle.
        set_stream: Sets a handle's stream; None for a library whose handles have none.
    """

    def __new__(
        cls,
        name: str,
        create: Callable[[], int] | int,
        destroy: Callable[[int], object] | int,
        set_stream: Callable[[int, int], object] | int | None = None,
    ) -> HandlePool: ...
    def handle(self, stream: StreamLike | None = None, device: SupportsIndex | None = None) -> int:
        """Return this thread's handle, with its stream set.

        The handle stays this thread's until the thread ends: don't destroy it, and don't use it in another thread. Ask
        for it inside the capture of a graph, not before: what the graph needs of it, such as cuBLAS's workspace, is
        then the graph's own.

        The handles of hipBLAS, hipBLASLt, hipSOLVER and hipSPARSE cannot be shared by streams, so a thread has one for
        each of up to eight streams; another stream then gets the handle that has had its own for longest, and waits
        for what that has under way.

        >>> stream = gpupool.Stream()
        >>> gpupool.host.handle(stream) == gpupool.host.handle(stream)
        True

        Args:
            stream: The stream to set. The default is the thread's current stream on the device: that of :func:`stream`,
                else that of the framework that was enabled last, else the legacy default stream.
            device: The device's ordinal, where no stream is given. The default is the thread's current device.

        Returns:
            The handle's address, as ctypes, cuda.bindings and nvmath take it: a ``cublasHandle_t``, ``cudnnHandle_t``
            and so on. Declare ctypes' argument as ``ctypes.c_void_p``, which it passes as 32 bits otherwise.

        Raises:
            LibraryNotFound: The library cannot be loaded.
            RuntimeUnavailable: The library's platform is missing.
            LibraryError: The library or the driver refuses a call.
            OutOfMemory: The device has no memory for another handle.
            InvalidValue: There is no such device or stream.
            Forked: The process is a forked child.
        """

    def lease(
        self,
        stream: StreamLike | None = None,
        device: SupportsIndex | None = None,
        timeout: float | None = None,
    ) -> Lease:
        """Lend a handle for a block, with its stream set: ``with pool.lease(stream) as handle:``.

        Threads that seldom work at once then need only as many handles as work at once. ``int(handle)`` is the handle,
        and ctypes, cuda.bindings and nvmath take the lease itself for it.

        >>> with gpupool.host.lease(timeout=5) as handle:
        ...     assert int(handle) != 0

        Args:
            stream: The stream to set, as in :meth:`handle`.
            device: The device's ordinal, as in :meth:`handle`.
            timeout: How many seconds to wait for a handle if the pool has a :attr:`limit`; 30 by default.

        Returns:
            The lease, a context manager. It can also be ended by :meth:`Lease.release`.

        Raises:
            PoolExhausted: No handle became free in time.
            Error: As in :meth:`handle`.
        """

    @property
    def limit(self) -> int | None:
        """The most handles that there may be on each device; None for any number.

        Requests beyond the limit wait for a lease or a thread to end, in the order in which they came; Ctrl-C ends the
        wait. Handles beyond a new limit stay.
        """

    @limit.setter
    def limit(self, value: int | None) -> None: ...
    def set_mem_pool(self, pool: MemPool | PoolToken | None, device: SupportsIndex | None = None) -> None:
        """Let the handles on a MemPool's device take the device memory that they need from that :class:`MemPool`.

        cuDSS's handles can be told, by cudssSetDeviceMemHandler (https://docs.nvidia.com/cuda/cudss/functions.html).

        A handle takes its memory from the MemPool from the next time on that a thread asks for the handle: then all
        that it allocates, in every thread and scope, also for objects made before. Where the MemPool has no more, the
        library's call fails (CUDSS_STATUS_ALLOC_FAILED). The MemPool can be changed at any time, since memory returns
        to where it came from, in the order of the handle's stream: destroy cuDSS's objects while that stream lives.
        gpupool keeps the MemPool until another is set, and counts that in its :meth:`~MemPool.use_count`. A memory
        handler that the program sets on its handle stays until the handle has a new owner.

        Args:
            pool: The MemPool; None for plain memory of the driver.
            device: With None, the device whose handles are told; all devices by default.

        Raises:
            InvalidValue: The library cannot be told, or the MemPool was dropped or is another device's.
            Error: As in :meth:`handle`.
        """

    def warm(self, count: int, device: SupportsIndex | None = None, background: bool = False) -> int:
        """Create the handles that are missing for ``count`` to be idle on the device, and return how many were created.

        A :attr:`limit` is kept.

        >>> pool = gpupool.HandlePool("warmed", iter(range(1, 100)).__next__, lambda handle: None)
        >>> pool.warm(2)
        2

        Args:
            count: How many handles are to be idle.
            device: The device's ordinal; the thread's current device by default.
            background: True to return 0 at once and create them on a thread of gpupool's own. They, or a failure, show
                up in :meth:`stats`.

        Raises:
            Unavailable: The system starts no thread.
            Error: As in :meth:`handle`.
        """

    def trim(self, device: SupportsIndex | None = None) -> int:
        """Destroy the idle and discarded handles of one device, or of all, and return how many were destroyed.

        cuBLAS, cuBLASLt, cuSOLVER and cuDSS wait for the whole device when a handle is destroyed, which spoils every
        capture on it; ROCm's libraries are assumed to do the same. No handle of these is destroyed while gpupool knows
        of a capture: one on a :class:`Stream`, on this thread's current stream, or on any blocking stream. The driver
        does not tell of others, so don't trim while another library captures on a non-blocking stream of its own.

        Args:
            device: The device's ordinal; all devices by default.

        Raises:
            LibraryError: The library refuses to destroy a handle.
        """

    def close(self) -> int:
        """End a pool that the program made: destroy its idle handles and this thread's, and return their number.

        The pool makes no more handles. Those of other threads return as the threads end, for :meth:`trim` to destroy.

        >>> pool = gpupool.HandlePool("closed", iter(range(1, 100)).__next__, lambda handle: None)
        >>> pool.handle()
        1
        >>> pool.close()
        1

        Raises:
            InvalidValue: The pool is that of a library that gpupool knows, and is the whole process's.
        """

    def stats(self, device: SupportsIndex | None = None) -> HandleStats:
        """Return the pool's counts, on one device or summed over all.

        Args:
            device: The device's ordinal; all devices by default.
        """

    def reset_peak_stats(self, device: SupportsIndex | None = None) -> None:
        """Restart the peaks of :meth:`stats` from the present counts, on one device or on all.

        :func:`reset_peak_memory_stats` does this for every pool, and for the peaks of memory.

        Args:
            device: The device's ordinal; all devices by default.
        """

    @property
    def available(self) -> bool:
        """True if the library can be loaded and its runtime is the one in use."""

    @property
    def version(self) -> tuple[int, int, int] | None:
        """The library's version as major, minor and patch; None for a pool that the program made.

        hipBLASLt and hipSPARSE tell theirs once a handle was made, hipBLAS and hipSOLVER never: None until then.
        """

    @property
    def path(self) -> str | None:
        """The file that the library was loaded from; None for a pool that the program made."""

    @property
    def origin(self) -> str | None:
        """The way in which the library's file was found; None for a pool that the program made.

        ``environment``: ``GPUPOOL_<NAME>_PATH`` names it. ``process``: other code had loaded it. ``wheel``: it is in a
        pip wheel's folder. ``conda``: it is in the ``lib`` folder of the environment. ``toolkit``: it is below
        ``CUDA_HOME``, ``CUDA_PATH``, ``ROCM_PATH``, ``HIP_PATH`` or where the toolkit's installer puts it. ``system``:
        the dynamic linker found it, by ``LD_LIBRARY_PATH`` or in the system's folders.
        """

    @property
    def loaded(self) -> bool:
        """True if the library has been loaded, which its first use does; this property loads nothing."""

    @property
    def name(self) -> str:
        """The pool's name."""

@final
class Lease:
    """A handle that belongs to one holder until the block ends; see :meth:`HandlePool.lease`.

    It may be used and ended in another thread than the one that asked for it, by one thread at a time. ``int(lease)``
    is the handle's address, which raises :class:`InvalidValue` once the lease has ended.

    >>> lease = gpupool.host.lease()
    >>> handle = int(lease)
    >>> lease.release()
    >>> lease
    <gpupool.Lease host (over)>
    """

    def __enter__(self) -> Lease:
        """Return the lease."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> Literal[False]:
        """End the lease, as :meth:`release` does."""

    @property
    def _as_parameter_(self) -> Any:
        """The handle as ctypes passes it, a ``c_void_p``.

        See https://docs.python.org/3/library/ctypes.html#calling-functions-with-your-own-custom-data-types
        """

    def __int__(self) -> int:
        """Return the handle.

        Raises:
            InvalidValue: The lease has ended.
        """

    def __index__(self) -> int:
        """Return the handle, as ``int(lease)`` does."""

    @property
    def device(self) -> int:
        """The ordinal of the handle's device."""

    def release(self) -> None:
        """End the lease before the block's end; a second call does nothing."""

    def discard(self) -> None:
        """End the lease of a handle that was changed in a way that the pool cannot set back.

        The pool does not lend the handle again, and :meth:`HandlePool.trim` destroys it.
        """

@final
class HandleStats:
    """The counts of a handle pool at one moment, which :meth:`HandlePool.stats` and :func:`handle_stats` return.

    >>> gpupool.host.stats().failures
    0
    """

    @property
    def created(self) -> int:
        """The number of handles created so far."""

    @property
    def destroyed(self) -> int:
        """The number of handles destroyed so far, by trimming."""

    @property
    def retired(self) -> int:
        """The number of handles that were discarded and wait to be destroyed by trimming."""

    @property
    def idle(self) -> int:
        """The number of handles that no thread and no lease holds."""

    @property
    def held(self) -> int:
        """The number of handles that threads hold until they end."""

    @property
    def leased(self) -> int:
        """The number of handles that leases hold."""

    @property
    def peak_in_use(self) -> int:
        """The most handles that were in use at once, by threads or leases.

        The number is never too low. It is too high by handles that were used one after another where more lay idle than
        were needed, as after :meth:`HandlePool.warm` or :meth:`HandlePool.reset_peak_stats`. Of several devices it is
        the sum.
        """

    @property
    def hits(self) -> int:
        """The number of requests that the thread's own handle served."""

    @property
    def misses(self) -> int:
        """The number of requests that went to the pool."""

    @property
    def hand_overs(self) -> int:
        """The number of misses served by a handle that another thread had held, or that was made ahead of need."""

    @property
    def waits(self) -> int:
        """The number of requests that waited for a handle because of a limit."""

    @property
    def failures(self) -> int:
        """The number of requests and creations that failed."""

    @property
    def create_seconds(self) -> float:
        """The seconds spent creating handles, summed over threads."""

    @property
    def device_bytes(self) -> int:
        """The bytes of device memory that the handles took when they were created."""

    @property
    def peak_device_bytes(self) -> int:
        """The most that ``device_bytes`` was. Of several devices it is the sum."""

    @property
    def workspace_bytes(self) -> int:
        """The bytes of device memory that gpupool gave the handles, and graphs captured with them, to compute with.

        These are cuBLAS's workspaces: one for each stream of a handle, and one for each graph.
        """

    def as_dict(self) -> dict[str, int | float]:
        """Return the counts as a dictionary, by the names of the properties."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

def handle_stats(device: SupportsIndex | None = None) -> dict[str, HandleStats]:
    """Return the counts of every pool that has been used, by its name, on one device or summed over all.

    >>> handle = gpupool.host.handle()
    >>> gpupool.handle_stats()["host"].held > 0
    True

    Args:
        device: The device's ordinal; all devices by default.

    Raises:
        InvalidValue: There is no such device.
    """

@final
class Stream:
    """A stream that gpupool creates, and destroys with this object.

    It does not wait for the legacy default stream (``CU_STREAM_NON_BLOCKING``). In ``with stream:`` it is this thread's
    current one, as in ``with gpupool.stream(stream):``. Streams of other libraries need not become one of these: every
    call takes them as they are, see :mod:`gpupool.typing`. What :func:`current_stream` returns stands for a stream of
    other code's where that is current, and destroys nothing.

    See https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html

    >>> stream = gpupool.Stream()
    >>> with stream:
    ...     buffer = gpupool.empty(1 << 20)
    >>> buffer.stream == stream.ptr
    True
    >>> stream.synchronize()

    Args:
        device: The device's ordinal; the thread's current device by default.
    """

    def __new__(cls, device: SupportsIndex | None = None) -> Stream: ...
    @property
    def ptr(self) -> int:
        """The stream's address: its CUstream, cudaStream_t or hipStream_t."""

    @property
    def device(self) -> int:
        """The ordinal of the stream's device."""

    def query(self) -> bool:
        """Return True if all work on the stream is done.

        Raises:
            LibraryError: The stream is being captured, or earlier work on it failed.
        """

    def synchronize(self) -> None:
        """Wait for all work on the stream.

        Raises:
            LibraryError: The stream is being captured, or earlier work on it failed.
        """

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return version 0 and the stream's address, by the protocol of cuda.core.

        See https://nvidia.github.io/cuda-python/cuda-core/latest/interoperability.html
        """

    def __enter__(self) -> Stream:
        """Make this the thread's current stream, and its device the current one, and return the stream."""

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]:
        """Make the former stream and device current again."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class StreamScope:
    """The context manager that :func:`stream` returns. It may be entered again, also by another thread."""

    def __enter__(self) -> Any:
        """Make the stream the thread's current one, and return what :func:`stream` was given."""

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]:
        """Make the former stream and device current again."""

@final
class ShareToken:
    """Names a buffer that a process shares, for :func:`attach` in another process of the same user.

    It pickles, and is a few bytes, ``bytes(token)``, of which ``ShareToken(data)`` is made again. Who has them, as the
    same user on the same machine, can read and write the buffer.

    >>> buffer = gpupool.empty(1 << 20)
    >>> token = buffer.share()
    >>> gpupool.ShareToken(bytes(token)) == token
    True
    """

    def __new__(cls, data: bytes, /) -> ShareToken: ...
    @property
    def nbytes(self) -> int:
        """The number of bytes of the buffer."""

    @property
    def process(self) -> int:
        """The id of the process that shares it."""

    def __bytes__(self) -> bytes:
        """Return what travels in any way."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class DeviceBuffer:
    """Device memory, aligned to 512 bytes, that is freed in stream order when the object dies.

    CuPy and PyTorch make arrays of it without a copy, by ``__cuda_array_interface__`` (version 3) or by ``__dlpack__``.
    The array has bytes, of which a view has any other type: ``torch.from_dlpack(buffer).view(torch.float32)``. The
    stream of a DLPack consumer waits for the buffer's, and the memory, once freed, for the consumer's. Simulated memory
    has ``__dlpack__`` alone and says that it is the CPU's, so that NumPy reads it.

    Without a framework its bytes are set by :meth:`fill` and :meth:`copy_from`, and read by :meth:`copy_to` and
    ``bytes(buffer)``, in the order of a stream. ``len(buffer)`` is :attr:`nbytes`.

    See https://dmlc.github.io/dlpack/latest/python_spec.html and
    https://nvidia.github.io/numba-cuda/user/cuda_array_interface.html

    >>> buffer = gpupool.empty(4)
    >>> buffer.copy_from(b"gpu!")
    >>> bytes(buffer)
    b'gpu!'
    >>> buffer.free()
    >>> buffer
    gpupool.DeviceBuffer(freed)
    """

    @property
    def ptr(self) -> int:
        """The address; 0 for 0 bytes.

        Raises:
            InvalidValue: The buffer was freed; every other property raises this too.
        """

    @property
    def nbytes(self) -> int:
        """The number of bytes that were asked for."""

    @property
    def device(self) -> int:
        """The device's ordinal."""

    @property
    def stream(self) -> int:
        """The address of the stream on which the buffer was allocated."""

    @property
    def pool_id(self) -> PoolId:
        """The id of the pool that the memory came from; ``(0, 0)`` is the device's default pool."""

    @property
    def is_attached(self) -> bool:
        """True if :func:`attach` made the buffer, so that another process shares its memory."""

    def share(self, stream: StreamLike | None = None) -> ShareToken:
        """Share the buffer with other processes of the same user, and return a token for :func:`attach` there.

        The token pickles, and travels in any way. What attaches it waits, on its stream, for what was submitted to this
        buffer's stream so far. The buffer is not kept for it: hold it until it is attached. Freed after that, the
        memory is used again once every process has freed its buffer or has ended, and its work is done; nothing waits
        meanwhile.

        A buffer also travels by itself, as an argument of a ``multiprocessing`` process or through its queues and
        pipes. Then it is kept until the receiver has it, so it may be freed at once; what is never received stays to
        the end of the process, and :func:`memory_stats` counts it as ``sent_bytes``.

        >>> buffer = gpupool.empty(4)
        >>> buffer.copy_from(b"gpu!")
        >>> token = buffer.share()  # give it to another process, which calls gpupool.attach(token)
        >>> token.nbytes
        4

        Args:
            stream: The stream whose work so far is waited for, by default the buffer's own.

        Raises:
            InvalidValue: The buffer was freed, is empty, attached or a graph's; its memory cannot be shared, as
                that of an allocator's own; or the stream is captured.
            Asleep: Its pool is asleep.
            Unavailable: The system has no thread or descriptor left.
            LibraryError: The driver refuses.
        """

    def record_stream(self, stream: StreamLike) -> None:
        """Keep the memory, once freed, from being used again before this stream's work at that time is done.

        The stream's object is kept alive until the buffer is freed; a stream that is given as an address must live as
        long. One of another device needs :func:`enable_peer_access`.

        Args:
            stream: The stream whose work uses the memory.

        Raises:
            InvalidValue: The buffer was freed, or the stream's device has no access to it.
        """

    def copy_from(self, host: ReadableBuffer, stream: StreamLike | None = None) -> None:
        """Copy memory of the host to the buffer, after the stream's work so far.

        From pinned memory of gpupool's, a :class:`PinnedBuffer` or a memoryview or array of one, this returns at once,
        and the copy is done in the background: wait for the stream before that memory is written again. From any
        other memory it returns when the copy is done; other threads run meanwhile. While the stream is captured only
        pinned memory is taken, which the graph then copies from at each replay.

        >>> import array
        >>> buffer = gpupool.empty(8)
        >>> buffer.copy_from(array.array("i", [1, 2]))
        >>> list(memoryview(bytes(buffer)).cast("i"))
        [1, 2]

        Args:
            host: As many bytes as the buffer has, in one piece: bytes, a bytearray, a memoryview, an array of NumPy, a
                PinnedBuffer or whatever else has the buffer protocol.
            stream: The stream; the buffer's own by default, which must be alive.

        Raises:
            TypeError: ``host`` has no bytes.
            InvalidValue: The sizes differ, the memory is not in one piece, the buffer was freed, the stream is captured
                and the memory is not pinned, or its device has no access.
            LibraryError: The driver refuses.
        """

    def copy_to(self, host: WriteableBuffer, stream: StreamLike | None = None) -> None:
        """Copy the buffer to memory of the host, after the stream's work so far.

        To pinned memory of gpupool's this returns at once: wait for the stream before it is read. Otherwise it is as
        :meth:`copy_from`.

        >>> buffer = gpupool.empty(3)
        >>> buffer.copy_from(b"abc")
        >>> host = bytearray(3)
        >>> buffer.copy_to(host)
        >>> host
        bytearray(b'abc')

        Args:
            host: As many bytes as the buffer has, writable and in one piece.
            stream: The stream; the buffer's own by default, which must be alive.

        Raises:
            TypeError: ``host`` has no bytes.
            InvalidValue: ``host`` is read-only, or as in :meth:`copy_from`.
            LibraryError: The driver refuses.
        """

    def fill(self, byte: SupportsIndex, stream: StreamLike | None = None) -> None:
        """Set every byte of the buffer, after the stream's work so far; this waits for nothing.

        >>> buffer = gpupool.empty(3)
        >>> buffer.fill(65)
        >>> bytes(buffer)
        b'AAA'

        Args:
            byte: The value, 0 to 255.
            stream: The stream; the buffer's own by default, which must be alive.

        Raises:
            InvalidValue: The value is no byte, the buffer was freed, or the stream's device has no access to it.
            LibraryError: The driver refuses.
        """

    def __bytes__(self) -> bytes:
        """Return a copy of the buffer's bytes, once the work so far on its stream is done.

        Raises:
            InvalidValue: The buffer was freed, or its stream is captured.
        """

    def __len__(self) -> int: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Never:
        """Tell NumPy, which cannot read memory of a device, how the bytes are had.

        Raises:
            TypeError: Always.
        """

    def free(self, stream: StreamLike | None = None) -> None:
        """Free the memory now, after what was submitted to the stream so far.

        Args:
            stream: The stream; the buffer's own by default.

        Raises:
            InvalidValue: The buffer was freed before, is shared by DLPack, or the stream is of a device that has no
                access; the buffer is then as it was.
        """

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The buffer as an array of bytes, version 3; simulated memory has none.

        See https://nvidia.github.io/numba-cuda/user/cuda_array_interface.html
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the kind of memory, as DLPack numbers it, and the device's ordinal."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the buffer as a DLPack capsule of bytes, which keeps the memory.

        See https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html

        Args:
            stream: The consumer's stream, which waits for the buffer's; -1 for no order, None for the default stream.
            max_version: The newest version of DLPack that the consumer knows.
            dl_device: Where the memory is to be, which must be where it is.
            copy: True is refused, for nothing is copied.

        Raises:
            BufferError: The memory would have to be copied or moved.
            InvalidValue: The buffer was freed, or ``stream`` is no stream.
        """

def empty(nbytes: SupportsIndex, stream: StreamLike | None = None) -> DeviceBuffer:
    """Allocate device memory on the stream and return it, not initialised.

    It comes from the pool whose scope the thread is in, else from the device's default pool. It is freed in the order
    of the stream when the buffer dies: the next block on that stream may have the memory at once.

    >>> buffer = gpupool.empty(1 << 20)
    >>> buffer.nbytes
    1048576

    Args:
        nbytes: The number of bytes.
        stream: The stream; this thread's current one by default.

    Returns:
        The memory. For 0 bytes it takes none, and its address is 0.

    Raises:
        OutOfMemory: There is not enough memory, even after all that was not in use was returned to the driver.
    """

@final
class PinnedBuffer:
    """Pinned memory of the host, aligned to 512 bytes, that is freed when the object dies.

    The host and every GPU read and write it at the same address, and copies to and from a GPU run at full speed and in
    the background. The host has it by the buffer protocol, as writable bytes: ``numpy.frombuffer(buffer,
    numpy.float32)`` and ``memoryview(buffer)`` copy nothing and keep it; also by ``__array_interface__`` (version 3),
    and by ``__dlpack__`` as CUDA's (or ROCm's) host memory. Simulated memory says that it is the CPU's.

    A stream whose work uses the memory is named by :meth:`record_stream`, or as ``stream`` where the buffer is made or
    freed. Once freed, the memory is used again only when the work is done that those streams had by then, and at once
    if there are none. Recorded on a stream that is captured, it is the graph's until the graph, and all that was
    instantiated from it, are gone; where the driver does not tell of that (before CUDA 12.3, and ROCm), it is not used
    again.

    See https://docs.nvidia.com/cuda/cuda-c-programming-guide/#page-locked-host-memory

    >>> pinned = gpupool.empty_pinned(3)
    >>> memoryview(pinned)[:] = b"abc"
    >>> buffer = gpupool.empty(len(pinned))
    >>> buffer.copy_from(pinned)  # in the background
    >>> bytes(buffer)
    b'abc'
    """

    @property
    def ptr(self) -> int:
        """The address, for the host and for every GPU; 0 for 0 bytes.

        Raises:
            InvalidValue: The buffer was freed; every other property raises this too.
        """

    @property
    def nbytes(self) -> int:
        """The number of bytes that were asked for."""

    @property
    def numa(self) -> int:
        """The number of the NUMA node that the memory is on."""

    def record_stream(self, stream: StreamLike) -> None:
        """Keep the memory, once freed, from being used again before this stream's work at that time is done.

        The stream's object is kept alive until the buffer is freed; a stream that is given as an address must live as
        long. It may be of any device. Copies by :meth:`DeviceBuffer.copy_from` and :meth:`DeviceBuffer.copy_to` do
        this themselves.

        Args:
            stream: The stream whose work uses the memory.

        Raises:
            InvalidValue: The buffer was freed.
        """

    def free(self, stream: StreamLike | None = None) -> None:
        """Free the memory now, to be used again once the streams are done with it.

        Args:
            stream: One more stream whose work so far uses the memory.

        Raises:
            InvalidValue: The buffer was freed before.
            BufferError: A memoryview, an array or a DLPack consumer has the memory; the buffer is then as it was.
        """

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The buffer as an array of bytes, version 3.

        See https://numpy.org/doc/stable/reference/arrays.interface.html
        """

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, view: memoryview, /) -> None: ...
    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the kind of memory, as DLPack numbers it, and 0."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the buffer as a DLPack capsule of bytes, which keeps the memory.

        See https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html

        Args:
            stream: A stream that will use the memory, which is recorded; None or -1 for none.
            max_version: The newest version of DLPack that the consumer knows.
            dl_device: Where the memory is to be, which must be where it is.
            copy: True is refused, for nothing is copied.

        Raises:
            BufferError: The memory would have to be copied or moved.
            InvalidValue: The buffer was freed, or ``stream`` is no stream.
        """

def empty_pinned(
    nbytes: SupportsIndex, stream: StreamLike | None = None, numa: SupportsIndex | None = None
) -> PinnedBuffer:
    """Allocate pinned memory of the host and return it, not initialised.

    >>> pinned = gpupool.empty_pinned(1 << 20)
    >>> len(memoryview(pinned))
    1048576

    Args:
        nbytes: The number of bytes.
        stream: A stream whose work will use the memory, as for :meth:`PinnedBuffer.record_stream`; none by default.
        numa: The number of a NUMA node; by default the one nearest to the stream's device, or without a stream to the
            thread's current device.

    Raises:
        OutOfMemory: There is not enough memory, or this process may lock no more; the message says which limits there
            are, and how to raise them.
    """

def warm_pinned(nbytes: SupportsIndex, background: bool = True, numa: SupportsIndex | None = None) -> None:
    """Have so many bytes of pinned memory ready in one piece, unless as many are free in one already.

    It takes some 0.1 s for a GiB on an H100 with 16 cores, and nothing waits for the GPU.

    Args:
        nbytes: The number of bytes.
        background: True to let a thread of gpupool's own make them, while requests are served as ever. If it fails,
            that is logged.
        numa: The number of a NUMA node; by default the one nearest to the thread's current device.

    Raises:
        OutOfMemory: There is not enough memory, or this process may lock no more; not in the background.
    """

def set_pinned_limit(nbytes: SupportsIndex | None) -> None:
    """Reserve at most so many bytes of pinned memory in this process, on all NUMA nodes together; None for no limit.

    What is reserved beyond the limit stays until it is free and :func:`empty_cache` returns it.

    >>> gpupool.set_pinned_limit(8 << 30)
    >>> gpupool.set_pinned_limit(None)

    Args:
        nbytes: The number of bytes; None for no limit.
    """

def pinned_stats(numa: SupportsIndex | None = None) -> MemoryStats:
    """Return the counts of pinned memory, on one NUMA node or on all together.

    Of several nodes ``peak_live_bytes`` is a bound: no less than the most that callers held at once.

    Args:
        numa: The number of a NUMA node; all together by default.

    Raises:
        InvalidValue: The host has no such node.
    """

def reset_peak_pinned_stats(numa: SupportsIndex | None = None) -> None:
    """Restart the peaks of pinned memory from what there is now, on one NUMA node or on all.

    Args:
        numa: The number of a NUMA node; all by default.

    Raises:
        InvalidValue: The host has no such node.
    """

@disjoint_base
class MemPool:
    """A private pool of one device's memory.

    What a thread allocates in a ``with use_mem_pool(pool):`` block, or in ``with pool:``, comes from the pool and
    returns to it; :meth:`empty` allocates from it without a block. When the pool dies, blocks that are alive stay
    valid; the rest returns to the driver at once. But for what it reserves, it takes no memory before it is used.

    A pool can be subclassed, weakly referenced and given attributes. A subclass's ``__init__`` calls this one.

    It is made after PyTorch's: https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.MemPool.html

    >>> pool = gpupool.MemPool(limit=1 << 30)
    >>> with pool:
    ...     buffer = gpupool.empty(1 << 20)
    >>> buffer.pool_id == pool.id
    True
    >>> pool.stats().live_bytes
    1048576

    Args:
        allocator: A pair ``malloc(size, device, stream) -> address``, ``free(address, size, device, stream)``:
            callables, or addresses of C functions as PyTorch's pluggable allocators have them; or such an allocator
            of PyTorch's, the ``CUDAPluggableAllocator`` or what its ``allocator()`` returns. What they allocate
            from gpupool themselves does not follow the thread's scopes. The pool keeps them as long as it has
            memory, so a callable that refers to the pool keeps it for ever: refer to ``pool.token()``.
        use_on_oom: Let requests of every other pool take what this one has free when the device has no more.
            Without it what the pool has freed serves the pool alone.
        no_split: Give each block a segment of its own, one piece of physical memory that stays where it is until
            :meth:`trim` or the pool's end: so it can be registered, see :meth:`on_segment`.
        limit: The most bytes to have at once; None for any number.
        device: The device's ordinal, or a ``torch.device``; the thread's current device by default.
        segments: Use memory of ``cuMemAlloc`` (``hipMalloc``) rather than pages that can move.
        is_user_created: False for an id as pools for graph capture have: ``(n, 0)``.
        reserve: Bytes of physical memory that the pool has from its birth to its end, in whole pages of 2 MiB, at
            addresses in one piece. Its requests are served from them first.

    Raises:
        InvalidValue: If there is no such device, or for a ``reserve`` above the limit or together with
            ``allocator``, ``segments`` or ``no_split``.
        OutOfMemory: If the device has not enough for ``reserve``, also after other pools have given back what they
            may and the callbacks of :func:`on_oom` were asked.
    """

    def __init__(
        self,
        allocator: AllocatorLike | None = None,
        use_on_oom: bool = False,
        no_split: bool = False,
        limit: int | None = None,
        device: DeviceLike | None = None,
        segments: bool = False,
        *,
        is_user_created: bool = True,
        reserve: int = 0,
    ) -> None: ...
    @property
    def id(self) -> PoolId:
        """The pool's id, ``(0, n)``, or ``(n, 0)`` for a pool for graph capture. No later pool gets it again."""

    @property
    def device(self) -> int:
        """The device's ordinal."""

    @property
    def allocator(self) -> Any:
        """The pair of functions, or the allocator of PyTorch's, that the pool was made with; or None."""

    @property
    def use_on_oom(self) -> bool:
        """True if requests of other pools may take what this one has free when the device has no more."""

    @property
    def no_split(self) -> bool:
        """True if each block has a segment of its own."""

    def use_count(self) -> int:
        """Return how many uses keep the pool.

        The object is one, and so is each scope entered, each capture not reset, each library that takes memory from the
        pool.
        """

    @property
    def limit(self) -> int | None:
        """The most bytes to have at once; None for any number.

        What the pool has beyond a new limit stays until it is freed and trimmed.
        """

    @limit.setter
    def limit(self, value: int | None) -> None: ...
    @property
    def reserve(self) -> int:
        """The bytes of physical memory that the pool has from its birth to its end."""

    def stats(self) -> PoolStats:
        """Return the pool's counts, in bytes and numbers of blocks."""

    def reset_peak_stats(self) -> None:
        """Restart the pool's peaks from what it holds now."""

    def trim(self) -> int:
        """Return free memory to the driver, and return its bytes. Pages that the GPU may still use return later.

        What the pool reserves stays.

        Raises:
            LibraryError: The driver refuses to take memory back.
        """

    def close(self) -> int:
        """End the pool for new requests, return what is free to the driver, and return its bytes.

        Requests are refused from then on, also in scopes that are open, and no scope or capture is entered any more.
        Blocks that are alive stay valid, and their memory returns as they are freed, that of graphs as they are reset.
        A second call does nothing more.

        >>> pool = gpupool.MemPool()
        >>> buffer = pool.empty(1 << 20)
        >>> released = pool.close()
        >>> buffer.nbytes  # still valid
        1048576

        Raises:
            LibraryError: The driver refuses to take memory back; the pool is closed all the same.
        """

    def empty(self, nbytes: SupportsIndex, stream: StreamLike | None = None) -> DeviceBuffer:
        """Allocate memory from the pool and return it, not initialised, as :func:`gpupool.empty` in ``with pool:``.

        >>> pool = gpupool.MemPool()
        >>> pool.empty(1000).pool_id == pool.id
        True

        Args:
            nbytes: The number of bytes.
            stream: The stream, of the pool's device; this thread's current one there by default.

        Raises:
            OutOfMemory: The pool may have no more, or the device has no more.
            InvalidValue: The pool was closed, or the stream is of another device.
        """

    def sleep(self, backup: Literal["host"] | None = "host") -> int:
        """Put the pool to sleep: return its device memory to the driver, and keep its addresses.

        What is live is copied to pinned memory of the host, and :meth:`wake` brings it back to the same addresses, so
        that arrays, tensors and captured graphs are as they were. Waits for all work on the device first. Until the
        pool wakes, its requests raise :class:`Asleep`, its blocks may be freed, and no kernel may touch them: on a GPU
        that ends in an illegal access, which no later call survives.

        Pinned memory that is ready, as by :func:`warm_pinned`, makes the first sleep much quicker.

        Args:
            backup: ``"host"``, or None to give the content up: then the blocks hold anything when the pool wakes.

        Returns:
            The bytes that returned to the driver; 0 if the pool is asleep already.

        Raises:
            Unavailable: The memory cannot sleep: that of a pool with ``no_split``, ``segments`` or an ``allocator``, or
                on a device without virtual memory management.
            InvalidValue: A stream of the device is captured.
            OutOfMemory: There is not enough pinned memory. Whatever is raised, the pool is awake with all that it had;
                should the driver also refuse that, it is asleep with its backup whole, and the text says so.
        """

    def wake(self) -> int:
        """Take device memory again at the same addresses, and copy back what :meth:`sleep` has copied.

        The memory may then be used on any stream, and graphs that were captured before may be replayed.

        Returns:
            The bytes that were taken from the driver; 0 if the pool is awake already.

        Raises:
            OutOfMemory: There is not enough memory, also after other pools returned what they may and callbacks were
                asked. The text says who holds it. The pool is as asleep as before, with its backup whole, also where
                the driver refuses a call for another reason.
        """

    @property
    def is_asleep(self) -> bool:
        """True if the pool is asleep, or just falling asleep or waking."""

    def on_segment(self, callback: Callable[[SegmentEvent], Any]) -> SegmentCallback:
        """Call ``callback(event)`` for each segment of the pool that is there, comes or goes.

        For who must register memory by its address, as NCCL, UCX and NVSHMEM do. Those that are there are told of at
        once, each later one before anything uses it, and each before it goes: by :meth:`trim`, with the pool, and of a
        pool with ``segments`` or an ``allocator`` also before a request of its own would fail. What gives a segment
        back waits for the work of the segment's streams first, so that a registration can end in the callback.

        It runs on the thread whose call brings or gives back the segment, with no lock held, and may allocate. What it
        raises is told to the log and to ``sys.unraisablehook``, and the request goes on. It is told until
        :meth:`SegmentCallback.remove` or the pool's end, also if the object that this returns dies; then nothing more,
        not of segments that are still there either. At the end of the process nothing is told. The pool keeps the
        callback, so one that refers to the pool keeps it for ever: refer to ``pool.token()`` there, or remove it.

        >>> pool = gpupool.MemPool(no_split=True)
        >>> registered = {}
        >>> def follow(event):
        ...     if event.kind == "added":
        ...         registered[event.address] = event.nbytes
        ...     else:
        ...         del registered[event.address]
        >>> callback = pool.on_segment(follow)
        >>> buffer = pool.empty(4 << 20)
        >>> registered == {buffer.ptr: 4 << 20}
        True
        >>> del buffer
        >>> pool.trim()
        4194304
        >>> registered
        {}
        >>> callback.remove()

        Raises:
            InvalidValue: The pool was made without ``no_split``, ``segments`` and ``allocator``, so that its memory
                moves; or it is closed, or ``callback`` cannot be called.
        """

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Return the pool's memory, block by block, as ``torch.cuda.memory_snapshot`` describes segments.

        Args:
            include_traces: Changes nothing, here as in PyTorch: :func:`memory_snapshot` returns traces.
        """

    def token(self) -> PoolToken:
        """Return a token with which another thread enters the pool.

        Threads need one, for they do not take over the scopes of the thread that starts them.

        >>> from concurrent.futures import ThreadPoolExecutor
        >>> pool = gpupool.MemPool()
        >>> with ThreadPoolExecutor(4, initializer=pool.token().enter) as workers:
        ...     buffer = workers.submit(gpupool.empty, 1000).result()
        >>> buffer.pool_id == pool.id
        True
        """

    def __enter__(self) -> Self:
        """Route what is allocated into the pool, as ``with use_mem_pool(pool):`` does, and return the pool."""

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]:
        """End the block that the thread, or the asyncio task, entered last."""
    def capture(self, stream: StreamLike) -> Capture:
        """Keep a graph's memory apart: ``with pool.capture(stream) as memory:`` around the graph's capture.

        What this thread allocates in the block is the graph's until ``memory.reset()``. An exception in the block
        releases everything.

        See https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs

        Args:
            stream: The stream that is captured, of the pool's device.

        Raises:
            InvalidValue: The stream is of another device, or the pool was closed.
        """

@final
class PoolToken:
    """A token with which a thread enters a pool that another thread works in; :meth:`MemPool.token` makes one.

    It does not keep the pool.
    """

    @property
    def id(self) -> PoolId:
        """The pool's id."""

    @property
    def device(self) -> int:
        """The ordinal of the pool's device."""

    def enter(self) -> None:
        """Route what the calling thread allocates into the pool until the thread ends.

        It is for the workers of a thread pool: ``ThreadPoolExecutor(initializer=pool.token().enter)``.

        Raises:
            InvalidValue: The pool was dropped or closed.
        """

@final
class PoolScope:
    """The context manager that :func:`use_mem_pool` returns; it routes allocations into a pool.

    It may be entered again, also by another thread.
    """

    def __enter__(self) -> MemPool | PoolToken:
        """Route allocations into the pool, and return what :func:`use_mem_pool` was given."""

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]:
        """End the block that the thread, or the asyncio task, entered last."""

def use_mem_pool(
    pool: MemPool | PoolToken, device: DeviceLike | None = None, *, all_threads: bool = False
) -> PoolScope:
    """Route what this thread allocates on the pool's device into the pool, for a ``with`` block.

    Blocks nest, the innermost wins, and any number of threads may be in the same pool. In an asyncio task the block is
    that task's alone, while it waits too; tasks that it starts in the block, and calls of ``asyncio.to_thread``, are in
    the block until it ends. There, a worker thread's requests follow the block where the thread holds the GIL, which it
    does in every call of gpupool's own and in CuPy's, but not in PyTorch's operators.

    >>> pool = gpupool.MemPool()
    >>> with gpupool.use_mem_pool(pool):
    ...     gpupool.empty(1000).pool_id == pool.id
    True

    Args:
        pool: The pool, or its token.
        device: The pool's device, which need not be named.
        all_threads: Also route what every other thread allocates on that device, as long as it has no block of its own
            there: for threads that a library starts, as those of PyTorch's backward passes. Each request of the process
            takes a little longer meanwhile, as it does while a task is in a block.

    Raises:
        InvalidValue: The pool is of another device, or was dropped or closed.
    """

@final
class Capture:
    """The context manager that :meth:`MemPool.capture` returns; what is allocated in it is a graph's."""

    def __enter__(self) -> GraphMemory:
        """Keep apart what this thread allocates from now on, and return the graph's memory."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> Literal[False]:
        """End the capture's allocations; after an exception their memory is released."""

@final
class GraphMemory:
    """The memory of a captured graph, which serves no other request until it is reset or dies."""

    @property
    def pool_id(self) -> PoolId:
        """The pool's id."""

    def reset(self) -> None:
        """Let other requests use the memory, once the graph is not replayed again."""

@final
class PoolStats:
    """The counts of a pool: what it holds now and what it has done so far; :meth:`MemPool.stats` returns them.

    >>> pool = gpupool.MemPool()
    >>> buffer = pool.empty(1000)
    >>> stats = pool.stats()
    >>> stats.live_bytes, stats.requested_bytes, stats.live_blocks
    (1024, 1000, 1)
    """

    @property
    def live_bytes(self) -> int:
        """The bytes of live blocks, as they were cut: multiples of 512, small ones rounded up by at most an eighth."""

    @property
    def peak_live_bytes(self) -> int:
        """The most that ``live_bytes`` was; with several threads or streams a bound.

        The bound is never less than what was live at once, and never more than ``peak_reserved_bytes``.
        """

    @property
    def requested_bytes(self) -> int:
        """The bytes that programs asked for when they allocated the live blocks."""

    @property
    def cached_bytes(self) -> int:
        """The bytes that are free for the next requests."""

    @property
    def releasing_bytes(self) -> int:
        """The bytes that return to the driver when the GPU is done with them, or that a request is adding or moving."""

    @property
    def asleep_bytes(self) -> int:
        """Of the live bytes those that are asleep, with no device memory behind them."""

    @property
    def backup_bytes(self) -> int:
        """The bytes of pinned memory that hold the content of what is asleep."""

    @property
    def reserved_bytes(self) -> int:
        """The physical bytes: the sum of live, cached and releasing bytes, less those that are asleep."""

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that ``reserved_bytes`` was."""

    @property
    def live_blocks(self) -> int:
        """The number of live blocks."""

    @property
    def waiting_blocks(self) -> int:
        """The number of blocks that were freed and wait for other streams; they count as live."""

    @property
    def allocations(self) -> int:
        """The number of blocks that were handed out so far."""

    @property
    def frees(self) -> int:
        """The number of blocks that were freed so far."""

    def as_dict(self) -> dict[str, int]:
        """Return the counts as a dictionary, by the names of the properties."""

    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...

@final
class MemoryStats:
    """The counts of a device's memory, summed over its pools: what it holds now and what it has done so far.

    :func:`memory_stats` returns them, and :func:`pinned_stats` those of pinned memory of the host.
    """

    @property
    def live_bytes(self) -> int:
        """The bytes of live blocks, as they were cut: multiples of 512, small ones rounded up by at most an eighth."""

    @property
    def peak_live_bytes(self) -> int:
        """The most that ``live_bytes`` was; with several threads or streams a bound.

        The bound is never less than what was live at once, and never more than ``peak_reserved_bytes``.
        """

    @property
    def requested_bytes(self) -> int:
        """The bytes that programs asked for when they allocated the live blocks."""

    @property
    def cached_bytes(self) -> int:
        """The bytes that are free for the next requests."""

    @property
    def releasing_bytes(self) -> int:
        """The bytes that return to the driver when the GPU is done with them, or that a request is adding or moving."""

    @property
    def asleep_bytes(self) -> int:
        """Of the live bytes those that are asleep, with no device memory behind them."""

    @property
    def backup_bytes(self) -> int:
        """The bytes of pinned memory that hold the content of what is asleep."""

    @property
    def reserved_bytes(self) -> int:
        """The physical bytes: the sum of live, cached and releasing bytes, less those that are asleep."""

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that ``reserved_bytes`` was."""

    @property
    def live_blocks(self) -> int:
        """The number of live blocks."""

    @property
    def waiting_blocks(self) -> int:
        """The number of blocks that were freed and wait for other streams; they count as live."""

    @property
    def allocations(self) -> int:
        """The number of blocks that were handed out so far."""

    @property
    def frees(self) -> int:
        """The number of blocks that were freed so far."""

    @property
    def driver_calls(self) -> int:
        """The number of calls of the driver's memory functions so far."""

    @property
    def moved_pages(self) -> int:
        """The number of pages of 2 MiB that were moved so far."""

    @property
    def pools(self) -> int:
        """The number of pools, the default one among them."""

    @property
    def attached_bytes(self) -> int:
        """Bytes of other processes' buffers that are attached for the device, which no other count has.

        What was let go does not count, also where it stays mapped for the next time.
        """

    @property
    def sent_bytes(self) -> int:
        """Bytes of buffers that were sent to other processes and that none has received yet; they are live."""

    def as_dict(self) -> dict[str, int]:
        """Return the counts as a dictionary, by the names of the properties."""

    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...

@final
class OomCallback:
    """A callback that :func:`on_oom` registered, until it is removed or this object dies: keep the object."""

    def remove(self) -> None:
        """Remove the callback, which is not called again."""

@final
class SegmentCallback:
    """A callback that :meth:`MemPool.on_segment` registered, until it is removed or the pool is gone.

    As a context manager it is removed at the end of the block.
    """

    def remove(self) -> None:
        """Remove the callback, which is told nothing more, but for calls under way on other threads.

        Of segments that are still there it is not told that they go: their registrations are the caller's to end.
        """

    def __enter__(self) -> Self:
        """Return this object."""

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]:
        """Remove the callback, as :meth:`remove` does."""

@final
class SegmentEvent:
    """A segment of a pool that comes or goes, as :meth:`MemPool.on_segment` tells it."""

    @property
    def kind(self) -> Literal["added", "removed"]:
        """``"added"`` for a segment that is there, ``"removed"`` for one that is about to go."""

    @property
    def address(self) -> int:
        """Where the segment starts."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""

    @property
    def device(self) -> int:
        """The ordinal of its device."""

    @property
    def pool_id(self) -> PoolId:
        """The id of its pool."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class CApi:
    """The addresses of C functions, for frameworks that take them; ``gpupool.c_api`` is the one object of this class.

    The rest of the C interface is behind :attr:`capsule`, and declared in ``gpupool.h``: see :func:`get_include`.

    >>> gpupool.c_api.malloc != 0
    True
    """

    @property
    def malloc(self) -> int:
        """The address of PyTorch's pluggable ``malloc``.

        ``void *(ssize_t size, int device, cudaStream_t stream)``
        """

    @property
    def free(self) -> int:
        """The address of PyTorch's pluggable ``free``.

        ``void (void *, ssize_t size, int device, cudaStream_t stream)``
        """

    @property
    def cupy_malloc(self) -> int:
        """The address of the first function of ``cupy.cuda.CFunctionAllocator``.

        ``void *(void *, size_t size, int device)``
        """

    @property
    def cupy_free(self) -> int:
        """The address of the second function of ``cupy.cuda.CFunctionAllocator``.

        ``void (void *, void *pointer, int device)``
        """

    @property
    def handler_alloc(self) -> int:
        """The address of a device memory handler's first function, for cuDSS or cuQuantum.

        ``int (void *, void **, size_t, cudaStream_t)``
        """

    @property
    def handler_free(self) -> int:
        """The address of a device memory handler's second function, for cuDSS or cuQuantum.

        ``int (void *, void *, size_t, cudaStream_t)``
        """

    @property
    def handler(self) -> int:
        """The address of a whole ``cudssDeviceMemHandler_t``."""

    @property
    def pinned_handler(self) -> int:
        """The address of a whole ``cudssPinnedMemHandler_t``, of cuDSS 1.0, for ``cudssSetPinnedMemHandler``.

        Its memory is on the NUMA node nearest to the stream's device, and is used again once the work is done that the
        stream had when it was freed.
        """

    @property
    def capsule(self) -> Any:
        """A PyCapsule named ``gpupool.c_api`` that points to the table of C functions that ``gpupool.h`` declares."""

    def feed(self, pool: MemPool | PoolToken | None = None) -> tuple[int, int]:
        """Return a pair like :attr:`malloc` and :attr:`free`, for an allocator that keeps memory and cuts it itself.

        The functions allocate from the pool whatever scopes the calling thread is in, and return null where there is no
        memory. They do what ``cudaMalloc`` and ``cudaFree`` would: the memory may be used on any stream at once, and
        what is freed is used again after all work on the device so far. They ask no :func:`on_oom` callback. A pool
        that was dropped gives null.

        Args:
            pool: The pool; each device's default pool by default.

        Raises:
            InvalidValue: 64 pools have such functions already.
        """

c_api: CApi

def attach(
    token: ShareToken | bytes, device: SupportsIndex | None = None, stream: StreamLike | None = None
) -> DeviceBuffer:
    """Take up a buffer that another process of the same user shares: the same memory, without a copy.

    Work on the stream comes after what was submitted before :meth:`DeviceBuffer.share`. When the buffer is freed, its
    owner can use the memory again once this process's work with it is done. Where the owner ends first, it stays. What
    was let go stays mapped here until its owner gives that memory back to the driver, so that attaching what lies there
    next maps nothing. A program of containers needs no ptrace rights for it, and the containers one network and PID
    namespace.

    >>> buffer = gpupool.empty(4)
    >>> buffer.copy_from(b"gpu!")
    >>> same = gpupool.attach(buffer.share())  # in another process as well
    >>> bytes(same), same.is_attached
    (b'gpu!', True)

    Args:
        token: What :meth:`DeviceBuffer.share` returned, or its bytes.
        device: The device that is to use the memory, by default the one that it is on; another one must be able to
            reach it.
        stream: The stream that is to use it first, by default the device's current one.

    Raises:
        InvalidValue: The token is of another machine, boot, user or version of gpupool; the buffer was freed; the
            device cannot reach it, or is not visible here; or the stream is captured.
        Unavailable: The owner has ended, does not answer or cannot be reached, or this process may open no more files.
        LibraryError: The driver refuses. All is as before then.
    """

def share_at(ptr: int, stream: StreamLike) -> tuple[ShareToken, int]:
    """Share the live block that an address lies in, as :meth:`DeviceBuffer.share`, for an adapter that has no buffer.

    Return the token, and how far into the block the address is.

    Args:
        ptr: The address.
        stream: Processes that attach the block wait for its work so far.

    Raises:
        InvalidValue: No block is there, or it cannot be shared.
    """

@disjoint_base
class CudaCoreMemory:
    """What ``gpupool.cuda_core.MemoryResource`` is below cuda.core's class of that name.

    Args:
        make_buffer: ``cuda.core.Buffer.from_handle``, or what takes its arguments.
        stream: ``cuda.core.Stream``.
        device: The device's ordinal.
        pool: The pool of all requests; None for that of the scope that the thread is in.
    """

    def __new__(cls, *_arguments: Any, **_named: Any) -> Self: ...
    def __init__(
        self, make_buffer: Callable[..., Any], stream: type, device: int, pool: MemPool | PoolToken | None
    ) -> None: ...
    def allocate(self, size: SupportsIndex, *, stream: Any) -> Any:
        """Allocate ``size`` bytes for work on the stream, a cuda.core ``Stream`` or ``GraphBuilder``.

        Raises:
            gpupool.OutOfMemory: There is not enough memory.
            gpupool.InvalidValue: The stream is of another device.
        """

    def deallocate(self, ptr: Any, size: SupportsIndex, *, stream: Any) -> None:
        """Free what :meth:`allocate` returned, after the work so far on the stream. cuda.core calls this."""

    def device_buffer(self, pointer: int) -> DeviceBuffer | None:
        """Return the gpupool buffer at an address; None if this resource did not allocate it, or it was freed."""

    @property
    def reads_streams(self) -> bool:
        """Whether a stream's handle is read where cuda.core has it, not asked for by ``__cuda_stream__``."""

    @property
    def device_id(self) -> int:
        """The device's ordinal."""

@final
class CupyAllocator:
    """An allocator for ``cupy.cuda.set_allocator``.

    Memory is allocated on CuPy's current stream. Where that is an object of ``cupy.cuda.Stream``, which destroys its
    stream, the memory keeps it.

    Args:
        cuda: ``cupy.cuda``.
        failed: Called with the bytes and the error of a request that failed; the request returns what it returns.
    """

    def __new__(cls, cuda: Any, failed: Callable[[int, Exception], Any]) -> CupyAllocator: ...
    def malloc(self, nbytes: SupportsIndex, /) -> Any:
        """Return a ``cupy.cuda.MemoryPointer`` to so many bytes."""

    def current_stream(self, device: int, /) -> Any:
        """Return the address of the thread's current stream on a device."""

    @property
    def asks_directly(self) -> bool:
        """True if the stream comes from the C function that CuPy's modules call, False if from the one for users."""

    @property
    def makes_memory(self) -> bool:
        """True if it makes the objects of arrays' memory itself, False if it calls CuPy's classes for them."""

@final
class CupyPinnedMemory:
    """Pinned memory in the form in which ``cupy.cuda.PinnedMemoryPointer`` asks for it; it is freed when it dies."""

    def __new__(cls, nbytes: SupportsIndex) -> CupyPinnedMemory: ...
    @property
    def ptr(self) -> int:
        """The address; 0 for 0 bytes."""

    @property
    def size(self) -> int:
        """The number of bytes that were asked for."""

    def record_stream(self, stream: StreamLike) -> None:
        """Keep the memory, once freed, from being used again before this stream's work at that time is done."""

@final
class CupyPinnedAllocator:
    """An allocator for ``cupy.cuda.set_pinned_memory_allocator``.

    Args:
        pointer: ``cupy.cuda.PinnedMemoryPointer``.
        retry: Called with the bytes and the error of a request that failed for want of memory; the request returns what
            it returns.
        otherwise: The allocator of threads that have not called :meth:`enter`; None to serve all threads.
    """

    def __new__(
        cls,
        pointer: Callable[[CupyPinnedMemory, int], Any],
        retry: Callable[[int, OutOfMemory], Any],
        otherwise: Callable[[int], Any] | None = None,
    ) -> CupyPinnedAllocator: ...
    def malloc(self, nbytes: SupportsIndex) -> Any:
        """Return a pointer to so many bytes."""

    @staticmethod
    def enter() -> None:
        """Let the calling thread be served until :meth:`leave`; calls nest."""

    @staticmethod
    def leave() -> None:
        """End what the last :meth:`enter` began."""

def empty_pinned_cache() -> None:
    """Give the pinned memory that is free back to the system, and no device's."""

def owns(address: SupportsIndex) -> bool:
    """Return whether an address lies in memory of gpupool's."""

def fence(stream: StreamLike, delay: bool = True) -> bool:
    """Let later work on the stream's device, on every stream, wait for all work so far, and return True.

    The host does not wait. Memory of ``stream`` that was used on unknown streams may then be freed. While gpupool knows
    of a capture, which a fence would spoil, this does nothing and returns False.

    Args:
        stream: The stream.
        delay: False to let later work on this stream alone wait. Then pinned memory that was used on unknown streams
            may be freed on it.

    Raises:
        LibraryError: The driver is older than CUDA 12.5.
    """

def graph_pool_handle(user_created: bool = True, *, is_user_created: bool | None = None) -> PoolId:
    """Return an id that no pool has yet, for :func:`begin_allocate_to_pool`.

    See https://docs.pytorch.org/docs/stable/generated/torch.cuda.graphs.graph_pool_handle.html

    >>> pool_id = gpupool.graph_pool_handle()
    >>> gpupool.begin_allocate_to_pool(0, pool_id)
    >>> gpupool.empty(1000).pool_id == pool_id
    True
    >>> gpupool.end_allocate_to_pool(0, pool_id)
    >>> gpupool.release_pool(0, pool_id)

    Args:
        user_created: True for an id as pools made by users have, ``(0, n)``, False for one as pools for graph capture
            have, ``(n, 0)``.
        is_user_created: The same by PyTorch's name, which counts where both are given.
    """

def begin_allocate_to_pool(device: SupportsIndex, pool_id: PoolId) -> None:
    """Route this thread's allocations into the pool with this id, and count one use more of the pool.

    A pool is made for an id of :func:`graph_pool_handle` that has none yet.

    Args:
        device: The device's ordinal.
        pool_id: The pool's id.

    Raises:
        InvalidValue: The id is no pool's, or that of a pool that is gone or closed or of another device.
    """

def end_allocate_to_pool(device: SupportsIndex, pool_id: PoolId) -> None:
    """End what :func:`begin_allocate_to_pool` began, on the same thread.

    Args:
        device: The device's ordinal.
        pool_id: The pool's id.

    Raises:
        InvalidValue: As :func:`begin_allocate_to_pool`, or this thread does not allocate to that pool.
    """

def release_pool(device: SupportsIndex, pool_id: PoolId) -> None:
    """Take back one use of a pool; with the last its memory is released, and its id is no pool's any more.

    Args:
        device: The device's ordinal.
        pool_id: The pool's id.

    Raises:
        InvalidValue: As :func:`begin_allocate_to_pool`, or no use is left to release.
    """

def pool_use_count(device: SupportsIndex, pool_id: PoolId) -> int | None:
    """Return the number of uses of a pool; None if the id was handed out and its pool is yet to be made.

    Args:
        device: The device's ordinal.
        pool_id: The pool's id.

    Raises:
        InvalidValue: As :func:`begin_allocate_to_pool`.
    """

def empty_cache() -> int:
    """Return free memory of every pool to the driver, also inside scopes, and return its bytes.

    So it does with pinned memory of the host. Large pieces of that, which the driver lets go only once running kernels
    have ended, go a little later, on a thread of gpupool's own; they are not among the bytes, and count as reserved
    until then.

    What pools reserve stays, and so do segments that may be registered, those of pools with ``no_split``, ``segments``
    or an ``allocator``: they return by :meth:`MemPool.trim`, or with their pool.

    What this process keeps mapped of buffers that it had attached is unmapped. Where other processes still map what
    this one has freed, it waits a moment for them, a quarter of a second at most.

    >>> gpupool.empty(1 << 20).free()
    >>> released = gpupool.empty_cache()

    Returns:
        The bytes of device memory that went at once.

    Raises:
        LibraryError: The driver refuses to take memory back.
    """

def sleep(device: SupportsIndex | None = None, backup: Literal["host"] | None = "host") -> int:
    """Put all of a device's memory to sleep: its default pool, every :class:`MemPool`, and the pools of graphs.

    Each falls asleep as by :meth:`MemPool.sleep`. Idle handles are destroyed with their workspaces, as by
    :meth:`HandlePool.trim`, and made again when they are needed. Pools that cannot sleep, those with ``no_split``,
    ``segments`` or an ``allocator``, stay awake, and a line of the log names each.

    Args:
        device: The device; the current one by default.
        backup: As for :meth:`MemPool.sleep`.

    Returns:
        The bytes that returned to the driver; 0 for what is asleep already.

    Raises:
        InvalidValue: A stream of the device is captured.
        OutOfMemory: There is not enough pinned memory. Whatever is raised, the pools that this call put to sleep are
            awake again, as far as there is memory for them.
    """

def wake(device: SupportsIndex | None = None) -> int:
    """Wake all of a device's memory that is asleep, as by :meth:`MemPool.wake`, and return the bytes that were taken.

    Raises:
        OutOfMemory: There is not enough memory for all pools. Each is awake, or as asleep as before, and another call
            wakes the rest.
    """

def memory_stats(device: SupportsIndex | None = None) -> MemoryStats:
    """Return the counts of a device's memory, in bytes and numbers of blocks.

    >>> buffer = gpupool.empty(1 << 20)
    >>> gpupool.memory_stats().live_bytes >= 1 << 20
    True

    Args:
        device: The device's ordinal; the thread's current device by default.

    Raises:
        InvalidValue: There is no such device.
    """

def reset_peak_memory_stats(device: SupportsIndex | None = None) -> None:
    """Restart all peaks of a device from what there is now: those of its memory pools, and of handles there.

    Counters, as of allocations, are never reset.

    Args:
        device: The device's ordinal; the thread's current device by default.
    """

def memory_snapshot(
    mempool_id: PoolId | None = None, include_traces: bool = True, *, device: SupportsIndex | None = None
) -> dict[str, Any]:
    """Return the memory of every pool, block by block, and the events that :func:`record_memory_history` has kept.

    It has the form of ``torch.cuda.memory._snapshot()``, which PyTorch's viewers
    read: ``segments`` with their blocks, ``device_traces`` with a list of events for each device,
    ``allocator_settings`` and ``external_annotations``. Sizes are in bytes, and in events those that were asked for;
    ``time_us`` counts from 1970. gpupool adds ``thread`` to each event, as the operating system numbers it, and
    ``handle_events``: ``time_us``, ``library``, ``device``, ``action`` (``create``, ``take``, ``give_back``,
    ``discard``, ``destroy``), ``handle`` and ``thread``. Pinned memory of the host is in ``pinned_segments`` and its
    events in ``pinned_trace``, with ``numa`` in place of ``device``.

    All of it is of one moment: allocations on other threads wait meanwhile, about 0.1 us for each block and event.

    See https://pytorch.org/memory_viz, and :func:`dump_snapshot`, which writes a file for it.

    >>> buffer = gpupool.empty(1000)
    >>> sorted(gpupool.memory_snapshot())[:3]
    ['allocator_settings', 'device_traces', 'external_annotations']

    Args:
        mempool_id: A pool's id, for its segments and events alone; every pool by default, and for ``(0, 0)``.
        include_traces: False to leave the events out.
        device: A device's ordinal, for what is of that device; all devices by default.

    Raises:
        InvalidValue: The id is no pool's, or that of a pool that is gone or of another device.
    """

def record_memory_history(
    enabled: Literal["all", "state"] | None = "all",
    context: Literal["all", "alloc", "state"] | None = "all",
    stacks: Literal["python"] = "python",
    max_entries: SupportsIndex = ...,
    clear_history: bool = False,
    skip_actions: Sequence[str] | None = None,
) -> None:
    """Record what happens to memory and handles from now on, for :func:`memory_snapshot`; this touches no device.

    A stack is the innermost 64 Python frames of a thread that holds the GIL. PyTorch's operators let go of it before
    they allocate, so their events have no frames. A second call changes the settings. The parameters are those of
    ``torch.cuda.memory._record_memory_history``.

    See https://docs.pytorch.org/docs/stable/torch_cuda_memory.html

    >>> gpupool.record_memory_history()
    >>> gpupool.empty(1000).free()
    >>> events = gpupool.memory_snapshot()["device_traces"][0]
    >>> "alloc" in [event["action"] for event in events]
    True
    >>> gpupool.record_memory_history(None)

    Args:
        enabled: ``"all"`` keeps events, ``"state"`` only the call stacks of blocks that are live, None ends the
            recording and forgets everything.
        context: The call stacks to record: ``"state"`` those of live blocks' allocations, ``"alloc"`` also those of
            every allocation, ``"all"`` also those of every free, None no stacks.
        stacks: The language of the frames.
        max_entries: How many of the newest events to keep, of memory and of handles each, 64 bytes an event; 1,000,000
            by default.
        clear_history: Forget earlier events.
        skip_actions: Leave out events with these values of ``action``.

    Raises:
        InvalidValue: There is no such setting.
    """

def on_oom(callback: Callable[[int, int], Any]) -> OomCallback:
    """Call ``callback(device, nbytes)`` when memory has run out, before the request fails.

    It returns True if it freed any, and the request is then tried again. It runs on the thread that asks, with no lock
    held, and may allocate nothing that calls it again.

    >>> cache = [gpupool.empty(1 << 20)]
    >>> def forget(device, nbytes):
    ...     is_used = bool(cache)
    ...     cache.clear()
    ...     return is_used
    >>> callback = gpupool.on_oom(forget)  # until it dies
    >>> callback.remove()

    Args:
        callback: Takes the device's ordinal and the number of bytes that were asked for.

    Returns:
        What keeps the callback registered.

    Raises:
        InvalidValue: ``callback`` cannot be called.
    """

def set_per_process_memory_fraction(fraction: float, device: SupportsIndex | None = None) -> None:
    """Reserve at most this part of the device's memory, as ``torch.cuda.set_per_process_memory_fraction`` does.

    >>> gpupool.set_per_process_memory_fraction(0.5)
    >>> gpupool.get_per_process_memory_fraction()
    0.5
    >>> gpupool.set_per_process_memory_fraction(1.0)

    Args:
        fraction: The part, 0 to 1; 1 for no limit.
        device: The device's ordinal; the thread's current device by default.

    Raises:
        InvalidValue: ``fraction`` is not from 0 to 1, or there is no such device.
    """

def get_per_process_memory_fraction(device: SupportsIndex | None = None) -> float:
    """Return the part that :func:`set_per_process_memory_fraction` set, 0 to 1; 1 by default.

    Args:
        device: The device's ordinal; the thread's current device by default.
    """

def enable_peer_access(device: SupportsIndex, peer: SupportsIndex) -> None:
    """Let ``peer`` read and write the memory that gpupool has on ``device``, now and later.

    See https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PEER__ACCESS.html

    Args:
        device: The ordinal of the device that has the memory.
        peer: The ordinal of the device that is to use it.

    Raises:
        InvalidValue: There is no such device, or the two cannot reach each other.
        LibraryError: The driver refuses.
    """

def torch_functions(address_of: Callable[[str], int]) -> dict[str, int]:
    """Return addresses of C functions for PyTorch's pluggable allocator, by the names of the setters that take them.

    ``address_of(symbol)`` returns the address of a symbol of PyTorch's own library; see :mod:`gpupool.torch`.
    """

@final
class ReplayResult:
    """The memory and time that the replay of one trace took; :func:`replay` returns it."""

    @property
    def peak_reserved(self) -> int:
        """The most bytes that the allocator had of the device at a time."""

    @property
    def driver_calls(self) -> int:
        """The number of calls that asked the driver for memory or returned some, in the first pass."""

    @property
    def moved_pages(self) -> int:
        """The number of pages of device memory that were mapped to other addresses, in the first pass."""

    @property
    def cold_ns(self) -> float:
        """The nanoseconds an event takes in the first pass, which starts without memory."""

    @property
    def warm_ns(self) -> float:
        """The nanoseconds an event takes in later passes; their median."""

    @property
    def reserved(self) -> list[tuple[int, int]]:
        """What the allocator had reserved at each change, as (event, bytes after it), if that was asked for."""

def replay(
    slots: bytes,
    sizes: bytes,
    streams: bytes,
    slot_count: int,
    threads: int,
    allocator: str,
    watch: Callable[[float], object] | None = None,
    changes: int = 0,
) -> ReplayResult:
    """Replay a trace in several threads at once, and return the memory and time that it took.

    ``watch`` is called about ten times a second with the part that is done, 0 to 1. What it raises, or Ctrl-C, ends the
    replay. With ``changes``, on one thread, the result has what was reserved, as from :func:`replay_reserved`: it is
    that of the pass that peak and driver calls are of, which is not timed.
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
    """Replay a trace once and return what the allocator had reserved: (event, bytes after it) at each change.

    The list has at most ``most`` entries: if there were more changes, it has the least, the most and the last of each
    of equal parts.
    """

def unpickle(file: SupportsRead[bytes], memory_limit: int) -> Any:
    """Read a pickle of dictionaries, lists, tuples, numbers and texts, run nothing, and return its content.

    Integers have at most 64 bits, keys are texts or integers, and the values that are made take about ``memory_limit``
    bytes at most; anything else is :class:`InvalidValue`. What ``file`` raises is raised.
    """

def stream(s: StreamLike) -> StreamScope:
    """Make ``s`` this thread's current stream, and its device the current one, in ``with gpupool.stream(s):``.

    The current stream is where calls of gpupool's go that name none. Those of frameworks stay as they are.

    >>> stream = gpupool.Stream()
    >>> with gpupool.stream(stream.ptr):  # or a stream of CuPy, PyTorch, Numba, cuda.core
    ...     gpupool.current_stream() == stream
    True

    Args:
        s: The stream: an object or an address, see :mod:`gpupool.typing`.

    Returns:
        A context manager, whose block's target is ``s``.

    Raises:
        InvalidValue: ``s`` is no stream.
        Forked: The process is a forked child.
    """

def current_stream(device: SupportsIndex | None = None) -> Stream:
    """Return this thread's current stream, where calls go that name none.

    It is that of the innermost ``with stream:`` or :func:`stream`, else the current one of the framework that was
    enabled last, else the legacy default stream.

    >>> gpupool.current_stream()
    gpupool.Stream(ptr=0x0, device=0, the legacy default stream)

    Args:
        device: The device's ordinal; the thread's current device by default.

    Returns:
        The stream. One of other code's is not kept alive, and is not destroyed with the object.

    Raises:
        InvalidValue: There is no such device.
    """

def synchronize(device: SupportsIndex | None = None) -> None:
    """Wait for all work of a device, on every stream of the process, as ``torch.cuda.synchronize`` does.

    See https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html for ``cuCtxSynchronize``.

    >>> buffer = gpupool.empty(1 << 20)
    >>> buffer.fill(0)
    >>> gpupool.synchronize()

    Args:
        device: The device's ordinal; the thread's current device by default.

    Raises:
        InvalidValue: There is no such device, or one of its streams is being captured, which waiting would spoil.
        LibraryError: The driver refuses, or earlier work on the device failed.
    """

def set_stream_source(source: Callable[[int], int] | None) -> Callable[[int], int] | None:
    """Choose the function that names a thread's current stream outside of :func:`stream`, and return the former one.

    ``source(device)`` returns an address, 0 for the default stream. None stands for the legacy default stream.
    Frameworks' adapters call this.
    """

def runtime() -> str:
    """Return the runtime in use: ``cuda``, ``hip`` or ``host``.

    It is that of ``GPUPOOL_RUNTIME``, else the first that has a device.

    >>> gpupool.runtime()
    'host'

    Raises:
        RuntimeUnavailable: The one that ``GPUPOOL_RUNTIME`` names has no device here.
    """

def driver_version() -> tuple[int, int] | None:
    """Return the CUDA version that the driver supports, or HIP's, as major and minor; None for simulated devices."""

def device_info(device: SupportsIndex) -> dict[str, Any]:
    """Return what the driver tells of a device. No context is made.

    The keys are ``name``, ``uuid``, ``compute_capability`` (major and minor), ``pci_bus_id``, ``is_mig``,
    ``is_shareable`` and ``is_rdma`` (whether gpupool's memory can be shared with other processes, and registered by
    network cards), ``total_bytes`` and ``free_bytes``. A value is None where a device does not have it, and
    ``free_bytes`` where the process has no context there.
    """

def runtimes_passed_over() -> list[tuple[str, str, bool]]:
    """Return each platform that was passed over for the runtime, why, and whether it is there but does not work."""

def device_count() -> int:
    """Return the number of devices that the process sees, as ``CUDA_VISIBLE_DEVICES`` and its like leave them.

    >>> gpupool.device_count() > 0
    True

    Raises:
        RuntimeUnavailable: The runtime that ``GPUPOOL_RUNTIME`` names has no device here.
    """

def current_device() -> int:
    """Return the ordinal of this thread's current device, which CUDA and its frameworks share; 0 at first.

    >>> gpupool.current_device()
    0
    """

def set_memory_limit(fraction: float | None, nbytes: int | None) -> tuple[float | None, int | None]:
    """Reserve at most this much on each device, also on those used later, and return the former limits.

    No driver is asked.
    """

def devices_in_use() -> list[int]:
    """Return the ordinals of the devices whose memory the process has used, or on which it has made handles.

    No driver is asked.
    """

def summarize(device: SupportsIndex | None = None) -> dict[str, Any]:
    """Return what holds a device's memory, for :func:`gpupool.memory_summary`."""

def summarize_pinned() -> tuple[list[dict[str, Any]], int | None]:
    """Return the counts of pinned memory for each NUMA node that was used, and the limit of all together."""

def nearest_numa_node(device: SupportsIndex) -> int | None:
    """Return the number of the host's NUMA node that is nearest to a device."""

def add_site_packages(folders: Sequence[str | PathLike[str]]) -> None:
    """Tell the loader of libraries where this interpreter's wheels are."""

def simulate_costly_handles(create_seconds: float, nbytes: int) -> None:
    """Make handles of the simulated library take so long to create, and so many bytes of a device."""

# Only in builds with the feature fault-injection, for gpupool's own tests.
def host_inject(call: str, kind: str = "other", after: int = 0, times: int = 1) -> None: ...
def host_clear_faults() -> None: ...
def host_reuse_extent_numbers() -> None: ...
def host_set_create_cost(seconds: float) -> None: ...
def host_set_handle_bytes(nbytes: int) -> None: ...
def host_stream_of(handle: int) -> int: ...
def host_create_stream(device: int) -> int: ...
def host_destroy_stream(stream: StreamLike) -> None: ...
def host_submit(stream: StreamLike) -> int: ...
def host_complete(stream: StreamLike, number: int) -> None: ...
def host_begin_capture(stream: StreamLike) -> None: ...
def host_end_capture(stream: StreamLike) -> None: ...
