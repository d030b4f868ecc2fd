"""The compiled part of gpupool."""

from collections.abc import Callable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Never, Self, SupportsIndex, final

from _typeshed import ReadableBuffer, SupportsRead, WriteableBuffer
from typing_extensions import disjoint_base

from gpupool.typing import AllocatorLike, DeviceLike, PageNumbers, PoolId, StreamLike

__version__: str

cublas: HandlePool
cublaslt: HandlePool
cudnn: HandlePool
cudss: HandlePool
cusolver: HandlePool
cusparse: HandlePool
cusparselt: HandlePool
custatevec: HandlePool
cutensor: HandlePool
cutensornet: HandlePool
hipblas: HandlePool
hipblaslt: HandlePool
hipsolver: HandlePool
hipsparse: HandlePool
miopen: HandlePool
simulated: HandlePool

def set_log_level(level: int) -> None:
    """Set the lowest level of the records to create, as ``logging`` numbers levels."""

def start_log(hand_over: Callable[[list[tuple[str, int, str, int, str, float, int]]], None]) -> None:
    """Set the function that takes log records, on a thread of gpupool.

    A record consists of its logger, level, file, line, message, time in seconds since 1970, and thread as ``gettid``
    numbers it.
    """

def clear_log_records() -> None:
    """Discard the log records that a forked child inherited from its parent."""

def end_log(patience: float) -> None:
    """Hand over the log records that are left, and start no thread for later ones.

    This waits for a thread that hands records over, but at most this many seconds.
    """

def pause_log(patience: float) -> None:
    """Start no thread for log records until :func:`resume_log`; a forked child starts them without that call.

    This waits for a thread that is starting, but at most this many seconds.
    """

def resume_log() -> None:
    """Start threads for log records again, and one for the records made meanwhile."""

class Error(Exception):
    """The base class of gpupool's errors.

    >>> try:
    ...     gpupool.empty(1 << 60)
    ... except gpupool.Error as error:
    ...     print(type(error).__name__)
    OutOfMemory
    """

class RuntimeUnavailable(Error):
    """The GPU platform that a call needs is missing.

    There is no driver or no device, the driver does not work, or another runtime was chosen.
    """

class LibraryNotFound(Error):
    """A library could not be loaded. The message lists every place that was searched and how to install the library.

    If it is a pool's library, ``library`` is the pool's name, ``tried`` lists each place with what was found there,
    ``remedy`` says how to install the library, and ``is_present`` is True if a file was found that cannot be used.
    """

    library: str
    tried: list[str]
    remedy: str
    is_present: bool

class LibraryError(Error):
    """A library or the driver refused a call.

    ``library`` is the library's name, ``cuda`` or ``hip`` for the driver; ``function`` is what was called; ``status``
    and ``code`` are what it returned, as a name and as a number; ``device`` is the device's ordinal, and ``path`` the
    file that the library was loaded from, None if there is none.
    """

    library: str
    function: str
    status: str
    code: int
    device: int | None
    path: str | None

class OutOfMemory(MemoryError, Error):
    """Out of memory, even after gpupool had released all of its unused memory; also a ``MemoryError``.

    The message says what holds the device's memory, and what helps: a higher limit if a limit was reached, freeing
    memory elsewhere if the device has no more.

    ``requested_bytes`` is the number of requested bytes, or of the bytes that a handle is known to take; None if that
    is not known. ``free_bytes`` and ``total_bytes`` are the device's at the last attempt. The other attributes are as
    in :class:`LibraryError`.

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
    """All handles within a pool's limit stayed in use until the request's timeout; also a ``TimeoutError``.

    ``library`` is the pool's name, ``device`` the device's ordinal, ``limit`` the pool's :attr:`HandlePool.limit`, and
    ``holders`` has a line for each thread or lease that holds a handle.
    """

    library: str
    device: int
    limit: int
    holders: list[str]

class Forked(Error):
    """The process was forked after its parent had used a GPU.

    Neither CUDA nor HIP works there: start processes with ``spawn`` or ``forkserver``, or fork before the first use.
    See https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods
    """

class InvalidValue(ValueError, Error):
    """A mistake of the caller: an invalid argument, or a call at the wrong time. Also a ``ValueError``.

    >>> try:
    ...     gpupool.empty(-1)
    ... except ValueError as error:
    ...     print(error)
    nbytes is -1: give a whole number from 0 to 2**64 - 1
    """

class Asleep(Error):
    """The request is to a pool that is asleep: wake it first, with its ``wake()`` or with :func:`wake`."""

class Unavailable(Error):
    """This pool, device or driver cannot do what is asked, such as sleep or have memory ranges.

    It is also raised if the system, or a table of fixed size, is exhausted: no thread, file descriptor or number is
    left.
    """

class InternalError(Error):
    """A bug in gpupool. Please report it."""

@final
class HandlePool:
    """The pool of one library's handles in this process.

    ``HandlePool(name, create, destroy, set_stream=None)`` creates a pool for a library that gpupool does not know. Each
    function is a Python callable (``create() -> int``, ``destroy(handle)``, ``set_stream(handle, stream)``) or the
    address of a C function (``int create(void**)``, ``int destroy(void*)``, ``int set_stream(void*, void*)``, where 0
    means success). The functions run with the device's primary context current. Create a pool once: it lives as long as
    the process, which can have 256 pools; one more raises :class:`Unavailable`.

    The pools of libraries that gpupool knows exist already: ``gpupool.cublas``, ``cublaslt``, ``cudnn``, ``cudss``,
    ``cusolver``, ``cusparse``, ``cusparselt``, ``custatevec``, ``cutensor`` and ``cutensornet``, on ROCm ``hipblas``,
    ``hipblaslt``, ``hipsolver``, ``hipsparse`` and ``miopen``, and on simulated devices ``gpupool.simulated``, which
    the examples use.

    >>> handle = gpupool.simulated.handle()  # this thread's handle, like gpupool.cublas.handle() on a GPU
    >>> with gpupool.simulated.lease() as lease:  # one for this block
    ...     print(int(lease) == handle)
    False

    Args:
        name: The pool's name, in errors and statistics.
        create: Creates a handle and returns it: an address or any other number except 0.
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

        The handle belongs to this thread until the thread ends: don't destroy it, and don't use it in another thread.
        Call this inside the capture of a graph, not before: memory that the graph needs for the handle, such as
        cuBLAS's workspace, then belongs to the graph.

        The handles of hipBLAS, hipBLASLt, hipSOLVER, hipSPARSE, cuStateVec and cuTensorNet cannot be shared by
        streams, so a thread has one for each of up to eight streams; a further stream gets the handle that was assigned
        to its stream the longest time ago, and waits for the work of that stream.

        >>> stream = gpupool.Stream()
        >>> gpupool.simulated.handle(stream) == gpupool.simulated.handle(stream)
        True

        Args:
            stream: The stream to set. The default is the thread's current stream on the device: that of :func:`stream`,
                else that of the framework that was enabled last, else the legacy default stream.
            device: The device's ordinal, if no stream is given. The default is the thread's current device.

        Returns:
            The handle's address, as ctypes, cuda.bindings and nvmath take it: a ``cublasHandle_t``, ``cudnnHandle_t``
            and so on. For ctypes declare the argument as ``ctypes.c_void_p``; otherwise only 32 bits are passed.

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

        If few of many threads work at the same time, only that many handles are needed. ``int(handle)`` is the handle;
        ctypes, cuda.bindings and nvmath also accept the lease itself.

        >>> with gpupool.simulated.lease(timeout=5) as handle:
        ...     assert int(handle) != 0

        Args:
            stream: The stream to set, as in :meth:`handle`.
            device: The device's ordinal, as in :meth:`handle`.
            timeout: How many seconds to wait for a handle if the pool has a :attr:`limit`; 30 by default.
                ``float("inf")`` is refused in a callback of gpupool.

        Returns:
            The lease, a context manager. It can also be ended by :meth:`Lease.release`.

        Raises:
            PoolExhausted: No handle became free in time.
            Error: As in :meth:`handle`.
        """

    @property
    def limit(self) -> int | None:
        """The maximum number of handles on each device; None for no limit.

        Requests beyond the limit wait for a lease or a thread to end, first come first served; Ctrl-C interrupts the
        wait. Handles beyond a new limit are kept.
        """

    @limit.setter
    def limit(self, value: int | None) -> None: ...
    def set_mem_pool(self, pool: MemPool | PoolToken | None, device: SupportsIndex | None = None) -> None:
        """Let the library's handles on a MemPool's device allocate their device memory from that :class:`MemPool`.

        cuDSS, cuStateVec and cuTensorNet support this, with cudssSetDeviceMemHandler
        (https://docs.nvidia.com/cuda/cudss/functions.html), custatevecSetDeviceMemHandler and
        cutensornetSetDeviceMemHandler (https://docs.nvidia.com/cuda/cuquantum/latest/).

        It takes effect the next time a thread requests the handle: then everything that the handle allocates, in every
        thread and scope, also for existing objects, comes from the MemPool. If the MemPool has no more memory, the
        library's call fails, as with CUDSS_STATUS_ALLOC_FAILED. The MemPool can be changed at any time, because memory
        is freed to the pool that it came from, in the order of the handle's stream, or for cuTensorNet the call's:
        destroy cuDSS's objects while that stream exists. gpupool keeps the MemPool until another is set, and counts
        that in its :meth:`~MemPool.use_count`. A memory handler that the program sets on its handle stays until the
        handle gets a new owner.

        Args:
            pool: The MemPool; None for plain driver memory.
            device: With ``pool=None``, the device whose handles are changed; all devices by default.

        Raises:
            InvalidValue: The library does not support this, or the MemPool was dropped or belongs to another device.
            Error: As in :meth:`handle`.
        """

    def get_mem_pool(self, device: SupportsIndex | None = None) -> PoolToken | None:
        """Return the pool that :meth:`set_mem_pool` has set for a device; None if it has set none.

        Args:
            device: The ordinal of the device; by default the current one.

        Raises:
            InvalidValue: The pool of handles is closed, or there is no such device.
        """

    def warm(self, count: int, device: SupportsIndex | None = None, background: bool = False) -> int:
        """Create handles until ``count`` are idle on the device, and return how many were created.

        A :attr:`limit` is respected.

        >>> pool = gpupool.HandlePool("warmed", iter(range(1, 100)).__next__, lambda handle: None)
        >>> pool.warm(2)
        2

        Args:
            count: The number of idle handles.
            device: The device's ordinal; the thread's current device by default.
            background: True to return 0 immediately and create them on a thread of gpupool. :meth:`stats` counts them,
                or a failure.

        Raises:
            Unavailable: The system cannot start a thread.
            Error: As in :meth:`handle`.
        """

    def trim(self, device: SupportsIndex | None = None) -> int:
        """Destroy the idle and discarded handles of one device, or of all, and return how many were destroyed.

        cuBLAS, cuBLASLt, cuSOLVER and cuDSS wait for the whole device when a handle is destroyed, which invalidates
        every capture on it; ROCm's libraries, cuStateVec, cuTensorNet, cuTENSOR and cuSPARSELt are assumed to do the
        same. Their handles are not destroyed while gpupool knows of a capture: one on a :class:`Stream`, on this
        thread's current stream, or on any blocking stream. The driver does not report others, so don't trim while
        another library captures on its own non-blocking stream.

        Args:
            device: The device's ordinal; all devices by default.

        Raises:
            LibraryError: The library refuses to destroy a handle.
        """

    def close(self) -> int:
        """Close a pool that the program created: destroy its idle handles and this thread's, and return their number.

        The pool creates no more handles. Other threads' handles return when the threads end; then :meth:`trim` destroys
        them.

        >>> pool = gpupool.HandlePool("closed", iter(range(1, 100)).__next__, lambda handle: None)
        >>> pool.handle()
        1
        >>> pool.close()
        1

        Raises:
            InvalidValue: The pool is a built-in one, which the whole process shares.
        """

    def stats(self, device: SupportsIndex | None = None) -> HandleStats:
        """Return the pool's counts, on one device or summed over all.

        Args:
            device: The device's ordinal; all devices by default.
        """

    def reset_peak_stats(self, device: SupportsIndex | None = None) -> None:
        """Reset the peaks of :meth:`stats` to the current counts, on one device or on all.

        :func:`reset_peak_stats` does this for every pool, and for the peaks of memory.

        Args:
            device: The device's ordinal; all devices by default.
        """

    @property
    def available(self) -> bool:
        """True if the library can be loaded and its runtime is the one in use."""

    @property
    def version(self) -> tuple[int, int, int] | None:
        """The library's version as major, minor and patch; None for a pool that the program created.

        hipBLASLt and hipSPARSE report it only after a handle was created, hipBLAS and hipSOLVER never; until then None.
        """

    @property
    def path(self) -> str | None:
        """The file that the library was loaded from; None for a pool that the program created."""

    @property
    def origin(self) -> str | None:
        """How the library's file was found; None for a pool that the program created.

        ``environment``: ``GPUPOOL_<NAME>_PATH`` names it. ``process``: other code had loaded it. ``wheel``: it is in a
        pip wheel's folder. ``conda``: it is in the ``lib`` folder of the environment. ``toolkit``: it is below
        ``CUDA_HOME``, ``CUDA_PATH``, ``ROCM_PATH``, ``HIP_PATH`` or where the toolkit's installer puts it. ``system``:
        the dynamic linker found it, by ``LD_LIBRARY_PATH`` or in the system's folders.
        """

    @property
    def loaded(self) -> bool:
        """True if the library has been loaded; its first use loads it, and this property does not."""

    @property
    def name(self) -> str:
        """The pool's name."""

    def _repr_html_(self) -> str | None:
        """Return the pool's name, library and counts as HTML, for a notebook; this loads no library."""

@final
class Lease:
    """A handle that belongs to one holder until the block ends; see :meth:`HandlePool.lease`.

    It may be used and ended in another thread than the one that requested it, by one thread at a time. ``int(lease)``
    is the handle's address; it raises :class:`InvalidValue` once the lease has ended.

    >>> lease = gpupool.simulated.lease()
    >>> handle = int(lease)
    >>> lease.release()
    >>> lease
    <gpupool.typing.Lease simulated (over)>
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
        """End the lease of a handle that was changed in a way that the pool cannot reset.

        The pool does not lend the handle again, and :meth:`HandlePool.trim` destroys it.
        """

@final
class HandleStats:
    """The counts of a handle pool at one moment, which :meth:`HandlePool.stats` and :func:`handle_stats` return.

    >>> before = gpupool.simulated.stats().failures
    >>> handle = gpupool.simulated.handle()
    >>> gpupool.simulated.stats().failures - before
    0
    """

    def __new__(cls, counts: dict[str, int | float], /) -> Self: ...
    @property
    def created(self) -> int:
        """The number of handles created so far."""

    @property
    def destroyed(self) -> int:
        """The number of handles destroyed so far, by trimming."""

    @property
    def discarded(self) -> int:
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
        """The maximum number of handles in use at the same time, by threads or leases.

        The number is never too low. It can be too high, from handles that were used one after another while more were
        idle than needed, as after :meth:`HandlePool.warm` or :meth:`HandlePool.reset_peak_stats`. For several devices
        it is the sum.
        """

    @property
    def hits(self) -> int:
        """The number of requests that the thread's own handle served."""

    @property
    def misses(self) -> int:
        """The number of requests that went to the pool."""

    @property
    def hand_overs(self) -> int:
        """The number of misses served by a handle that another thread had held, or that was created in advance."""

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
        """The maximum of ``device_bytes``. For several devices it is the sum."""

    @property
    def workspace_bytes(self) -> int:
        """The bytes of device memory that gpupool gave to the handles, and to graphs captured with them, as workspaces.

        These are cuBLAS's workspaces: one for each stream of a handle, and one for each graph.
        """

    def as_dict(self) -> dict[str, int | float]:
        """Return the counts as a dictionary, by the names of the properties."""

    def _repr_html_(self) -> str | None:
        """Return the counts as HTML, for a notebook."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

def handle_stats(device: SupportsIndex | None = None) -> dict[str, HandleStats]:
    """Return the counts of every pool that has been used, by its name, on one device or summed over all.

    >>> handle = gpupool.simulated.handle()
    >>> gpupool.handle_stats()["simulated"].held > 0
    True

    Args:
        device: The device's ordinal; all devices by default.

    Raises:
        InvalidValue: There is no such device.
    """

@final
class Stream:
    """A stream that gpupool creates, and destroys with this object.

    It does not synchronize with the legacy default stream (``CU_STREAM_NON_BLOCKING``). ``with stream:`` makes it this
    thread's current stream, like ``with gpupool.stream(stream):``. Streams of other libraries need not be converted:
    every call takes them as they are, see :mod:`gpupool.typing`. If a stream of other code is current,
    :func:`current_stream` returns an object that refers to it and does not destroy it.

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
            InvalidValue: This is the legacy default stream, and a blocking stream of its device is being captured.
            LibraryError: The stream is being captured, or earlier work on it failed.
        """

    def synchronize(self) -> None:
        """Wait for all work on the stream.

        Raises:
            InvalidValue: This is the legacy default stream, and a blocking stream of its device is being captured.
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
        """Restore the previous current stream and device."""

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
        """Restore the previous current stream and device."""

@final
class ShareToken:
    """A token for a shared buffer, for :func:`attach` in another process of the same user.

    It can be pickled, or converted to a few bytes by ``bytes(token)`` and back by ``ShareToken(data)``. Any process of
    the same user on the same machine that has these bytes can read and write the buffer.

    >>> buffer = gpupool.empty(1 << 20)
    >>> token = buffer.share()
    >>> gpupool.typing.ShareToken(bytes(token)) == token
    True
    """

    def __new__(cls, data: bytes, /) -> ShareToken: ...
    @property
    def nbytes(self) -> int:
        """The number of bytes of the buffer."""

    @property
    def process(self) -> int:
        """The id of the process that shares the buffer."""

    def __bytes__(self) -> bytes:
        """Return the token as bytes, which can be sent in any way."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class DeviceBuffer:
    """Device memory, aligned to 512 bytes, that is freed in stream order when the object dies.

    CuPy and PyTorch make arrays of it without a copy, by ``__cuda_array_interface__`` (version 3) or by ``__dlpack__``.
    The array consists of bytes; make a view for any other type: ``torch.from_dlpack(buffer).view(torch.float32)``. The
    stream of a DLPack consumer waits for the buffer's, and the memory, once freed, for the consumer's. Simulated memory
    supports only ``__dlpack__`` and declares itself as CPU memory, so that NumPy can read it.

    Without a framework, write its bytes with :meth:`fill` and :meth:`copy_from`, and read them with :meth:`copy_to` and
    ``bytes(buffer)``, in stream order. ``len(buffer)`` is :attr:`nbytes`.

    A buffer that was allocated on a thread's per-thread default stream (2) has a stream that no other thread can name.
    If another thread copies, fills, shares or sends it, or asks for its ``__cuda_array_interface__``, and names no
    stream, that thread's own default stream is used, after all work of the device so far, and a copy or a fill returns
    when it is done. This raises InvalidValue while a stream of the device is captured.

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
        """The number of requested bytes."""

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
        """True if :func:`attach` created the buffer, so that another process shares its memory."""

    def share(self, stream: StreamLike | None = None) -> ShareToken:
        """Share the buffer with other processes of the same user, and return a token for :func:`attach` there.

        The token can be pickled and sent in any way. The stream that attaches it waits for the work that was submitted
        to this buffer's stream so far. The token does not keep the buffer: hold the buffer until it is attached. If you
        free it after that, the memory is reused once every process has freed its buffer or has ended, and its work is
        done; nothing blocks meanwhile.

        The buffer can also be sent directly, as an argument of a ``multiprocessing`` process or through its queues and
        pipes. Then it is kept until the receiver has it, so you may free it immediately; if it is never received, it is
        kept until the process ends or :meth:`recall`, and :func:`memory_stats` counts it as ``sent_bytes``.

        >>> buffer = gpupool.empty(4)
        >>> buffer.copy_from(b"gpu!")
        >>> token = buffer.share()  # give it to another process, which calls gpupool.attach(token)
        >>> token.nbytes
        4

        Args:
            stream: The stream to wait for, by default the buffer's own.

        Raises:
            InvalidValue: The buffer was freed, is empty, attached or belongs to a graph; its memory cannot be shared,
                for example because it is from a custom allocator; or the stream is captured.
            Asleep: Its pool is asleep.
            Unavailable: The system has no thread or file descriptor left.
            LibraryError: The driver refuses.
        """

    def recall(self) -> None:
        """Stop keeping the memory for messages of ``multiprocessing`` that have not been received.

        Call it if a message with the buffer could not be sent, for example because another part of it cannot be
        pickled, or will not be received. A message that arrives later still has the buffer unless it was freed.

        >>> import multiprocessing
        >>> buffer = gpupool.empty(4)
        >>> try:
        ...     multiprocessing.Pipe()[0].send((buffer, lambda: 0))
        ... except Exception:  # no function without a name can be pickled
        ...     buffer.recall()
        >>> gpupool.memory_stats().sent_bytes
        0

        Raises:
            InvalidValue: The buffer was freed.
        """

    def record_stream(self, stream: StreamLike) -> None:
        """Make sure that the memory, once freed, is not reused before this stream's work at that time is done.

        The stream's object is kept alive until the buffer is freed; a stream that is given as an address must live as
        long. A stream of another device needs :func:`enable_peer_access`.

        Args:
            stream: The stream whose work uses the memory.

        Raises:
            InvalidValue: The buffer was freed, or the stream's device has no access to it.
        """

    def copy_from(self, host: ReadableBuffer, stream: StreamLike | None = None) -> None:
        """Copy host memory to the buffer, in stream order.

        A copy from gpupool's pinned memory, a :class:`PinnedBuffer` or a memoryview or array over one, is asynchronous:
        synchronize the stream before that memory is written again. From any other memory this returns when the copy is
        done; other threads run meanwhile. Such memory may be freed at once, even if this raises: the bytes go by way of
        at most 8 MiB of gpupool's pinned memory. While the stream is captured only pinned memory is accepted, from
        which the graph then copies at each replay.

        >>> import array
        >>> buffer = gpupool.empty(8)
        >>> buffer.copy_from(array.array("i", [1, 2]))
        >>> list(memoryview(bytes(buffer)).cast("i"))
        [1, 2]

        Args:
            host: As many bytes as the buffer has, contiguous: bytes, a bytearray, a memoryview, a NumPy array, a
                PinnedBuffer or anything else with the buffer protocol.
            stream: The stream; the buffer's own by default, which must be alive.

        Raises:
            TypeError: ``host`` does not support the buffer protocol.
            InvalidValue: The sizes differ, the memory is not contiguous, the buffer was freed, the stream is captured
                and the memory is not pinned, the stream's device has no access, or it is the legacy default stream and
                a blocking stream of its device is being captured.
            Asleep: Its pool is asleep.
            OutOfMemory: There is no pinned memory for the copy; :func:`set_pinned_limit` may be the reason.
            LibraryError: The driver refuses. Any part of the buffer may then be written.
        """

    def copy_to(self, host: WriteableBuffer, stream: StreamLike | None = None) -> None:
        """Copy the buffer to host memory, in stream order.

        A copy to gpupool's pinned memory is asynchronous: synchronize the stream before you read it. Otherwise this
        works like :meth:`copy_from`.

        >>> buffer = gpupool.empty(3)
        >>> buffer.copy_from(b"abc")
        >>> host = bytearray(3)
        >>> buffer.copy_to(host)
        >>> host
        bytearray(b'abc')

        Args:
            host: As many bytes as the buffer has, writable and contiguous.
            stream: The stream; the buffer's own by default, which must be alive.

        Raises:
            TypeError: ``host`` does not support the buffer protocol.
            InvalidValue: ``host`` is read-only, or as in :meth:`copy_from`.
            Asleep: Its pool is asleep.
            OutOfMemory: There is no pinned memory for the copy.
            LibraryError: The driver refuses. Any part of ``host`` may then be written.
        """

    def fill(self, byte: SupportsIndex, stream: StreamLike | None = None) -> None:
        """Set every byte of the buffer, in stream order and asynchronously.

        >>> buffer = gpupool.empty(3)
        >>> buffer.fill(65)
        >>> bytes(buffer)
        b'AAA'

        Args:
            byte: The value, 0 to 255.
            stream: The stream; the buffer's own by default, which must be alive.

        Raises:
            InvalidValue: The value is not a byte, the buffer was freed, the stream's device has no access to it, or it
                is the legacy default stream and a blocking stream of its device is being captured.
            Asleep: Its pool is asleep.
            LibraryError: The driver refuses.
        """

    def __bytes__(self) -> bytes:
        """Return a copy of the buffer's bytes, once the work so far on its stream is done.

        Raises:
            InvalidValue: The buffer was freed, or its stream is captured.
            Asleep: Its pool is asleep.
            OutOfMemory: There is no pinned memory for the copy.
            LibraryError: The driver refuses.
        """

    def __len__(self) -> int: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Never:
        """Raise an error that says how to copy the bytes, because NumPy cannot read device memory.

        Raises:
            TypeError: Always.
        """

    def free(self, stream: StreamLike | None = None) -> None:
        """Free the memory now, in the order of the stream.

        Args:
            stream: The stream; the buffer's own by default.

        Raises:
            InvalidValue: The buffer was freed before, is shared by DLPack, or the stream is of a device that has no
                access; the buffer is then unchanged.
        """

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The buffer as an array of bytes, version 3; simulated memory does not have it.

        See https://nvidia.github.io/numba-cuda/user/cuda_array_interface.html

        Raises:
            AttributeError: The memory is simulated.
            InvalidValue: The buffer was freed, or is on another thread's per-thread default stream while a stream of
                the device is captured.
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
            dl_device: The requested device, which must be the one that the memory is on.
            copy: True is refused, because nothing is copied.

        Raises:
            BufferError: The memory would have to be copied or moved.
            InvalidValue: The buffer was freed, ``stream`` is not a stream, or one of the two streams is captured and
                the other one's work is not part of that capture.
        """

def empty(nbytes: SupportsIndex, stream: StreamLike | None = None) -> DeviceBuffer:
    """Allocate device memory on the stream and return it, not initialised.

    The memory comes from the pool whose scope the thread is in, else from the device's default pool. It is freed in
    stream order when the buffer dies: the next block on that stream may reuse the memory immediately.

    >>> buffer = gpupool.empty(1 << 20)
    >>> buffer.nbytes
    1048576

    Args:
        nbytes: The number of bytes.
        stream: The stream; this thread's current one by default.

    Returns:
        The memory. For 0 bytes nothing is allocated, and its address is 0.

    Raises:
        OutOfMemory: There is not enough memory, even after all unused memory was released to the driver.
    """

@final
class PinnedBuffer:
    """Pinned host memory, aligned to 512 bytes, that is freed when the object dies.

    The host and every GPU can read and write it at the same address, and copies to and from a GPU are asynchronous and
    run at full speed. On the host use the buffer protocol, with writable bytes: ``numpy.frombuffer(buffer,
    numpy.float32)`` and ``memoryview(buffer)`` copy nothing and keep it alive; or ``__array_interface__`` (version 3),
    or ``__dlpack__`` as CUDA's (or ROCm's) host memory. Simulated memory declares itself as CPU memory.

    If work of a stream uses the memory, call :meth:`record_stream`, or pass ``stream`` when the buffer is created or
    freed. Freed memory is reused only when the work that those streams had by then is done, and immediately if there
    are none. If it is recorded on a stream that is captured, it belongs to the graph until the graph, and everything
    instantiated from it, is destroyed; where the driver does not report that (before CUDA 12.3, and ROCm), it is never
    reused.

    See https://docs.nvidia.com/cuda/cuda-c-programming-guide/#page-locked-host-memory

    >>> pinned = gpupool.empty_pinned(3)
    >>> memoryview(pinned)[:] = b"abc"
    >>> buffer = gpupool.empty(len(pinned))
    >>> buffer.copy_from(pinned)  # asynchronous
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
        """The number of requested bytes."""

    @property
    def numa(self) -> int:
        """The number of the NUMA node that the memory is on."""

    def record_stream(self, stream: StreamLike) -> None:
        """Make sure that the memory, once freed, is not reused before this stream's work at that time is done.

        The stream's object is kept alive until the buffer is freed; a stream that is given as an address must live as
        long. It may be of any device. :meth:`DeviceBuffer.copy_from` and :meth:`DeviceBuffer.copy_to` do this
        themselves.

        Args:
            stream: The stream whose work uses the memory.

        Raises:
            InvalidValue: The buffer was freed.
        """

    def free(self, stream: StreamLike | None = None) -> None:
        """Free the memory now; it is reused once the recorded streams are done with it.

        Args:
            stream: One more stream whose work so far uses the memory.

        Raises:
            InvalidValue: The buffer was freed before.
            BufferError: A memoryview, an array or a DLPack consumer uses the memory; the buffer is then unchanged.
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
            dl_device: The requested device, which must be the one that the memory is on.
            copy: True is refused, because nothing is copied.

        Raises:
            BufferError: The memory would have to be copied or moved.
            InvalidValue: The buffer was freed, or ``stream`` is not a stream.
        """

def empty_pinned(
    nbytes: SupportsIndex, stream: StreamLike | None = None, numa: SupportsIndex | None = None
) -> PinnedBuffer:
    """Allocate pinned host memory and return it, not initialised.

    >>> pinned = gpupool.empty_pinned(1 << 20)
    >>> len(memoryview(pinned))
    1048576

    Args:
        nbytes: The number of bytes.
        stream: A stream whose work will use the memory, as for :meth:`PinnedBuffer.record_stream`; none by default.
        numa: The number of a NUMA node; by default the one nearest to the stream's device, or without a stream to the
            thread's current device.

    Raises:
        OutOfMemory: There is not enough memory, or the limit of locked memory is reached; the message says which limits
            there are, and how to raise them.
    """

def warm_pinned(nbytes: SupportsIndex, numa: SupportsIndex | None = None, background: bool = False) -> None:
    """Allocate this many bytes of pinned memory in advance, in one piece, unless one such piece is free already.

    This takes about 0.1 s for a GiB on an H100 with 16 cores, and nothing waits for the GPU.

    Args:
        nbytes: The number of bytes.
        numa: The number of a NUMA node; by default the one nearest to the thread's current device.
        background: True to allocate them on a thread of gpupool, while requests are served as usual. A failure is
            logged.

    Raises:
        OutOfMemory: There is not enough memory, or the limit of locked memory is reached; not in the background.
    """

def set_pinned_limit(nbytes: SupportsIndex | None) -> None:
    """Limit the pinned memory that this process reserves, on all NUMA nodes together; None for no limit.

    Memory beyond a new limit is kept until it is free and :func:`empty_cache` releases it.

    >>> gpupool.set_pinned_limit(8 << 30)
    >>> gpupool.set_pinned_limit(None)

    Args:
        nbytes: The number of bytes; None for no limit.
    """

def get_pinned_limit() -> int | None:
    """Return the limit of :func:`set_pinned_limit`, in bytes; None if there is none.

    >>> gpupool.set_pinned_limit(8 << 30)
    >>> gpupool.get_pinned_limit()
    8589934592
    >>> gpupool.set_pinned_limit(None)
    """

def pinned_stats(numa: SupportsIndex | None = None) -> MemoryStats:
    """Return the counts of pinned memory, on one NUMA node or on all together.

    For several nodes ``peak_live_bytes`` is an upper bound: no less than what was live at the same time.

    Args:
        numa: The number of a NUMA node; all together by default.

    Raises:
        InvalidValue: The host has no such node.
    """

def reset_peak_pinned_stats(numa: SupportsIndex | None = None) -> None:
    """Reset the peaks of pinned memory to the current values, on one NUMA node or on all.

    Args:
        numa: The number of a NUMA node; all by default.

    Raises:
        InvalidValue: The host has no such node.
    """

@disjoint_base
class MemPool:
    """A private pool of one device's memory.

    Memory that a thread allocates in a ``with use_mem_pool(pool):`` block, or in ``with pool:``, comes from the pool
    and returns to it; :meth:`empty` allocates from it without a block. When the pool dies, live blocks stay valid; all
    other memory is released to the driver immediately. Except for ``reserve``, a pool takes no memory before its first
    request.

    A pool can be subclassed, weakly referenced and given attributes. A subclass's ``__init__`` must call this one.

    The class follows PyTorch's: https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.MemPool.html

    >>> pool = gpupool.MemPool(limit=1 << 30)
    >>> with pool:
    ...     buffer = gpupool.empty(1 << 20)
    >>> buffer.pool_id == pool.id
    True
    >>> pool.stats().live_bytes
    1048576

    Args:
        allocator: A pair ``malloc(size, device, stream) -> address``, ``free(address, size, device, stream)``:
            callables, or addresses of C functions with the signatures of PyTorch's pluggable allocators; or a pluggable
            allocator of PyTorch, a ``CUDAPluggableAllocator`` or what its ``allocator()`` returns. If they allocate
            from gpupool themselves, those requests ignore the thread's scopes. The pool keeps them as long as it has
            memory. An exception of ``malloc`` counts as a lack of memory, and is the ``__cause__`` of the
            :class:`OutOfMemory`; Ctrl-C, and any other exception that is not an ``Exception``, ends the request and is
            raised. An exception of ``free`` goes to ``sys.unraisablehook``, and Ctrl-C reaches the main thread soon
            after.
        use_on_oom: Let requests of every other pool use this pool's free memory when the device has no more.
            They get free pages, or else blocks of this pool; while such blocks are live, :meth:`sleep` is refused.
            Without it, memory that the pool has freed serves only the pool itself.
        no_split: Give each block its own segment, one piece of physical memory that is not moved until
            :meth:`trim` or the pool's end, so that it can be registered, see :meth:`on_segment`.
        limit: The maximum number of bytes to reserve; None for no limit.
        device: The device's ordinal, or a ``torch.device``; the thread's current device by default.
        segments: Use memory of ``cuMemAlloc`` (``hipMalloc``) rather than pages that can be moved.
        is_user_created: False for an id like those of pools for graph capture: ``(n, 0)``.
        reserve: Bytes of physical memory that the pool owns for its whole life, in whole pages of 2 MiB, at contiguous
            addresses. Its requests are served from them first.
        sleeps_for_others: Let the pool be put to sleep, with a backup, when another process of this user needs the
            device's memory and its neighbours have nothing else to give. This process becomes a neighbour, see
            :func:`set_neighbour`. The pool is not put to sleep while a thread has a block of it open (``with pool:``),
            or a stream of it is captured: have a block open while work with the pool's buffers is being submitted, and
            wake the pool first. The pool stays asleep until :meth:`wake`.
        wakes_on_use: Let the next use wake the pool when it sleeps for another process: a request to it, a block of it
            (``with pool:``), a copy or fill of one of its buffers, or a commit of pages of its ranges. That use takes
            as long as :meth:`wake`, and fails as it does.

    Raises:
        InvalidValue: If there is no such device, for a ``reserve`` above the limit or together with ``allocator``,
            ``segments`` or ``no_split``, or for ``wakes_on_use`` without ``sleeps_for_others``.
        Unavailable: If a pool with ``allocator``, ``segments`` or ``no_split`` is to sleep for others.
        OutOfMemory: If the device does not have enough for ``reserve``, even after other pools have released what they
            can and the callbacks of :func:`on_oom` were called.
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
        sleeps_for_others: bool = False,
        wakes_on_use: bool = False,
    ) -> None: ...
    @property
    def id(self) -> PoolId:
        """The pool's id, ``(0, n)``, or ``(n, 0)`` for a pool for graph capture. It is never reused."""

    @property
    def device(self) -> int:
        """The device's ordinal."""

    @property
    def allocator(self) -> Any:
        """The pair of functions, or the PyTorch allocator, that the pool was created with; or None."""

    @property
    def use_on_oom(self) -> bool:
        """True if requests of other pools may use this pool's free memory when the device has no more."""

    @property
    def no_split(self) -> bool:
        """True if each block has its own segment."""

    @property
    def sleeps_for_others(self) -> bool:
        """True if the pool may be put to sleep for another process."""

    @property
    def wakes_on_use(self) -> bool:
        """True if the next use of the pool wakes it when it sleeps for another process."""

    def use_count(self) -> int:
        """Return the number of uses that keep the pool alive.

        The object counts as one, and so does each entered scope, each capture that was not reset, each memory range,
        and each library that allocates from the pool.
        """

    @property
    def limit(self) -> int | None:
        """The maximum number of bytes to reserve; None for no limit.

        Memory beyond a new limit is kept until it is freed and trimmed.
        """

    @limit.setter
    def limit(self, value: int | None) -> None: ...
    @property
    def reserve(self) -> int:
        """The bytes of physical memory that the pool owns for its whole life."""

    def stats(self) -> PoolStats:
        """Return the pool's counts, in bytes and numbers of blocks."""

    def reset_peak_stats(self) -> None:
        """Reset the pool's peaks to the current values."""

    def trim(self) -> int:
        """Release free memory to the driver, and return its size. Pages that the GPU may still use are released later.

        The pool's ``reserve`` is kept.

        Raises:
            LibraryError: The driver refuses to release memory.
        """

    def close(self) -> int:
        """Close the pool for new requests, release its free memory to the driver, and return its size.

        From then on requests are refused, also in open scopes, and no scope or capture can be entered.
        Live blocks stay valid. Their memory is released when they are freed, and graphs' memory when it is reset. A
        second call does nothing.

        >>> pool = gpupool.MemPool()
        >>> buffer = pool.empty(1 << 20)
        >>> released = pool.close()
        >>> buffer.nbytes  # still valid
        1048576

        Raises:
            LibraryError: The driver refuses to release memory; the pool is closed nevertheless.
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
            OutOfMemory: The pool's limit is reached, or the device has no more memory.
            InvalidValue: The pool was closed, or the stream is of another device.
        """

    def reserve_range(self, nbytes: SupportsIndex, page_bytes: SupportsIndex = 2 << 20) -> MemoryRange:
        """Reserve addresses for memory that is committed and decommitted page by page; it takes no memory.

        >>> pool = gpupool.MemPool()
        >>> cache = pool.reserve_range(1 << 30)
        >>> cache.commit(0, 4 << 20)
        >>> cache.committed_bytes, pool.stats().live_bytes
        (4194304, 4194304)

        Args:
            nbytes: The bytes of addresses, a multiple of ``page_bytes``.
            page_bytes: The bytes of a page, a multiple of 2 MiB.

        Raises:
            InvalidValue: For other sizes; the message has them.
            Unavailable: The pool has ``no_split``, ``segments`` or an ``allocator``, or the device has no virtual
                memory.
            OutOfMemory: Too few contiguous addresses are left.
        """

    def sleep(self, backup: Literal["host"] | None = "host") -> int:
        """Put the pool to sleep: release its device memory to the driver, and keep its addresses.

        Live blocks are copied to pinned host memory, and :meth:`wake` restores them at the same addresses, so that
        arrays, tensors and captured graphs stay valid. This first waits for all work on the device. Until the pool
        wakes, its requests raise :class:`Asleep`, its blocks may be freed, and no kernel may access them: on a GPU that
        causes an illegal access, after which all calls fail.

        Pinned memory that was allocated in advance, by :func:`warm_pinned`, makes the first sleep much faster.

        Args:
            backup: ``"host"``, or None to discard the content: it is undefined when the pool wakes.

        Returns:
            The bytes that were released to the driver; 0 if the pool is asleep already.

        Raises:
            Unavailable: The memory cannot sleep, because the pool has ``no_split``, ``segments`` or an ``allocator``,
                or the device has no virtual memory management. Or blocks of the pool are used by other processes, which
                have attached them, or by requests of other pools, which got them because the pool has ``use_on_oom``.
            InvalidValue: A stream of the device is captured, or another thread puts the pool to sleep or wakes it and
                this is called in a callback that may not wait for that: see :func:`on_oom`.
            OutOfMemory: There is not enough pinned memory. After any error the pool is awake with all its memory; if
                the driver also refuses that, it is asleep with its backup complete, and the message says so.
        """

    def wake(self) -> int:
        """Allocate device memory again at the same addresses, and copy back what :meth:`sleep` has copied.

        The memory may then be used on any stream, and graphs that were captured before may be replayed.

        Returns:
            The bytes that were allocated from the driver; 0 if the pool is awake already.

        Raises:
            OutOfMemory: There is not enough memory, even after other pools released what they can and callbacks were
                called. The message says what holds it. The pool stays asleep, with its backup complete, also if the
                driver refuses a call for another reason.
            InvalidValue: Another thread puts the pool to sleep or wakes it, and this is called in a callback that may
                not wait for it: see :func:`on_oom`.
        """

    @property
    def is_asleep(self) -> bool:
        """True if the pool is asleep, or just falling asleep or waking."""

    def on_segment(self, callback: Callable[[SegmentEvent], Any]) -> SegmentCallback:
        """Call ``callback(event)`` for each segment of the pool: existing, added or removed.

        Use it to register memory by its address, for NCCL, UCX or NVSHMEM. Existing segments are reported immediately,
        each later one before it is first used, and each before it is released: by :meth:`trim`, with the pool, and in a
        pool with ``segments`` or an ``allocator`` also before one of its own requests would fail. A call that releases
        a segment first waits for the work of the segment's streams, so that the callback can deregister it. The end of
        the pool, or of a block of a closed pool, does not wait: a segment in use by the GPU is released when memory is
        next given back.

        The callback runs on the thread whose call adds or releases the segment, with no lock held, and may allocate. An
        exception goes to the log and to ``sys.unraisablehook``, and the request continues; Ctrl-C reaches the main
        thread soon after. Segments are reported until :meth:`SegmentCallback.remove` or the pool's end, even if the
        object that this returns dies; after that nothing is reported, not even the release of existing segments.
        Nothing is reported at the end of the process. The pool keeps the callback; one that refers to the pool ends
        with it when Python collects garbage.

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
            InvalidValue: The pool was created without ``no_split``, ``segments`` and ``allocator``, so that its memory
                can move; or it is closed, or ``callback`` is not callable.
        """

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Return the pool's memory, block by block, as ``torch.cuda.memory_snapshot`` describes segments.

        Args:
            include_traces: Has no effect, as in PyTorch: :func:`memory_snapshot` returns traces.
        """

    def token(self) -> PoolToken:
        """Return a token with which another thread enters the pool.

        Threads need one, because they do not inherit the scopes of the thread that starts them.

        >>> from concurrent.futures import ThreadPoolExecutor
        >>> pool = gpupool.MemPool()
        >>> with ThreadPoolExecutor(4, initializer=pool.token().enter) as workers:
        ...     buffer = workers.submit(gpupool.empty, 1000).result()
        >>> buffer.pool_id == pool.id
        True
        """

    def __enter__(self) -> Self:
        """Allocate from the pool in this block, as ``with use_mem_pool(pool):`` does, and return the pool."""

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]:
        """End the block that the thread, or the asyncio task, entered last."""
    def __del__(self) -> None:
        """End the pool before Python collects it as garbage with what its allocator and its callbacks refer to.

        A subclass with a finalizer of its own is not collected while these refer to it.
        """

    def capture(self, stream: StreamLike) -> Capture:
        """Separate a graph's memory from other memory: ``with pool.capture(stream) as memory:`` around its capture.

        What this thread allocates in the block belongs to the graph until ``memory.reset()``. An exception in the block
        releases everything.

        See https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs

        Args:
            stream: The stream that is captured, on the pool's device.

        Raises:
            InvalidValue: The stream is on another device, or the pool was closed. The block is not entered in the
                ``destroy`` of a :class:`HandlePool` that may wait for all work of the device, as this would spoil the
                capture.
        """

    def _repr_html_(self) -> str | None:
        """Return what the pool's repr says as HTML, for a notebook."""

@final
class PoolToken:
    """A token with which another thread can enter a pool; :meth:`MemPool.token` creates one.

    It does not keep the pool alive.
    """

    @property
    def id(self) -> PoolId:
        """The pool's id."""

    @property
    def device(self) -> int:
        """The ordinal of the pool's device."""

    def enter(self) -> None:
        """Let the calling thread allocate from the pool until the thread ends.

        Use it for the workers of a thread pool: ``ThreadPoolExecutor(initializer=pool.token().enter)``.

        Raises:
            InvalidValue: The pool was dropped or closed.
        """

@final
class PoolScope:
    """The context manager that :func:`use_mem_pool` returns; in its block allocations come from a pool.

    It may be entered again, also by another thread.
    """

    def __enter__(self) -> MemPool | PoolToken:
        """Allocate from the pool from now on, and return what :func:`use_mem_pool` was given."""

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]:
        """End the block that the thread, or the asyncio task, entered last."""

def use_mem_pool(
    pool: MemPool | PoolToken, device: DeviceLike | None = None, *, all_threads: bool = False
) -> PoolScope:
    """Let this thread's allocations on the pool's device come from the pool, for a ``with`` block.

    Blocks nest, the innermost applies, and any number of threads may use the same pool. In an asyncio task the block
    applies to that task only, also while it awaits; tasks that it starts in the block, and calls of
    ``asyncio.to_thread``, are in the block until it ends. There, a worker thread's requests follow the block if the
    thread holds the GIL, which it does in every call of gpupool and CuPy, but not in PyTorch's operators.

    >>> pool = gpupool.MemPool()
    >>> with gpupool.use_mem_pool(pool):
    ...     gpupool.empty(1000).pool_id == pool.id
    True

    Args:
        pool: The pool, or its token.
        device: The pool's device; it may be left out.
        all_threads: Also apply to every other thread on that device that has no block of its own there: for threads
            that a library starts, such as those of PyTorch's backward passes. Each request of the process takes a
            little longer meanwhile, as it does while a task is in a block.

    Raises:
        InvalidValue: The pool belongs to another device, or was dropped or closed.
    """

@final
class Capture:
    """The context manager that :meth:`MemPool.capture` returns; what is allocated in it belongs to a graph."""

    def __enter__(self) -> GraphMemory:
        """Let this thread's allocations belong to the graph from now on, and return the graph's memory."""

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
    """The statistics of a pool: current values and counters; :meth:`MemPool.stats` returns them.

    >>> pool = gpupool.MemPool()
    >>> buffer = pool.empty(1000)
    >>> stats = pool.stats()
    >>> stats.live_bytes, stats.requested_bytes, stats.live_blocks
    (1024, 1000, 1)
    """

    def __new__(cls, counts: dict[str, int | float], /) -> Self: ...
    @property
    def live_bytes(self) -> int:
        """The bytes of live blocks after rounding: multiples of 512, small ones rounded up by at most an eighth."""

    @property
    def peak_live_bytes(self) -> int:
        """The maximum of ``live_bytes``; with several streams an upper bound.

        The bound is never less than what was live at the same time, and never more than ``peak_reserved_bytes``.
        """

    @property
    def requested_bytes(self) -> int:
        """The bytes that were requested for the live blocks."""

    @property
    def cached_bytes(self) -> int:
        """The bytes that are free for the next requests."""

    @property
    def releasing_bytes(self) -> int:
        """The bytes to be released once the GPU is done with them, or that a request is adding or moving."""

    @property
    def asleep_bytes(self) -> int:
        """The part of the live bytes that is asleep, without device memory."""

    @property
    def backup_bytes(self) -> int:
        """The bytes of pinned memory that hold the content of sleeping blocks."""

    @property
    def reserved_bytes(self) -> int:
        """The bytes of physical memory: live, cached and releasing bytes, minus those that are asleep."""

    @property
    def peak_reserved_bytes(self) -> int:
        """The maximum of ``reserved_bytes``."""

    @property
    def live_blocks(self) -> int:
        """The number of live blocks."""

    @property
    def waiting_blocks(self) -> int:
        """The number of blocks that were freed and wait for other streams; they count as live."""

    @property
    def allocations(self) -> int:
        """The number of blocks that were allocated so far."""

    @property
    def frees(self) -> int:
        """The number of blocks that were freed so far."""

    def as_dict(self) -> dict[str, int]:
        """Return the counts as a dictionary, by the names of the properties."""

    def _repr_html_(self) -> str | None:
        """Return the counts as HTML, for a notebook."""

    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...

@final
class MemoryStats:
    """The statistics of a device's memory, summed over its pools: current values and counters.

    :func:`memory_stats` returns them, and :func:`pinned_stats` those of pinned host memory.
    """

    def __new__(cls, counts: dict[str, int | float], /) -> Self: ...
    @property
    def live_bytes(self) -> int:
        """The bytes of live blocks after rounding: multiples of 512, small ones rounded up by at most an eighth."""

    @property
    def peak_live_bytes(self) -> int:
        """The maximum of ``live_bytes``; with several streams an upper bound.

        The bound is never less than what was live at the same time, and never more than ``peak_reserved_bytes``.
        """

    @property
    def requested_bytes(self) -> int:
        """The bytes that were requested for the live blocks."""

    @property
    def cached_bytes(self) -> int:
        """The bytes that are free for the next requests."""

    @property
    def releasing_bytes(self) -> int:
        """The bytes to be released once the GPU is done with them, or that a request is adding or moving."""

    @property
    def asleep_bytes(self) -> int:
        """The part of the live bytes that is asleep, without device memory."""

    @property
    def backup_bytes(self) -> int:
        """The bytes of pinned memory that hold the content of sleeping blocks."""

    @property
    def reserved_bytes(self) -> int:
        """The bytes of physical memory: live, cached and releasing bytes, minus those that are asleep."""

    @property
    def peak_reserved_bytes(self) -> int:
        """The maximum of ``reserved_bytes``."""

    @property
    def live_blocks(self) -> int:
        """The number of live blocks."""

    @property
    def waiting_blocks(self) -> int:
        """The number of blocks that were freed and wait for other streams; they count as live."""

    @property
    def allocations(self) -> int:
        """The number of blocks that were allocated so far."""

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
    def retries(self) -> int:
        """The number of requests so far that were tried again after memory was released to the driver."""

    @property
    def failures(self) -> int:
        """The number of requests that failed for lack of memory so far."""

    @property
    def pools(self) -> int:
        """The number of pools, including the default one."""

    @property
    def attached_bytes(self) -> int:
        """Bytes of other processes' buffers that are attached for the device; no other count includes them.

        Released buffers do not count, even if they stay mapped for the next time.
        """

    @property
    def sent_bytes(self) -> int:
        """Bytes of buffers that were sent to other processes and that none has received yet; they are live."""

    @property
    def asked_neighbours(self) -> int:
        """The times so far that this process asked its neighbours for memory because a request found none."""

    @property
    def received_bytes(self) -> int:
        """The bytes that neighbours gave back for this process so far."""

    @property
    def asking_seconds(self) -> float:
        """The time that requests of this process waited for neighbours so far."""

    @property
    def asked_by_neighbours(self) -> int:
        """The number of neighbours' requests for memory so far: each neighbour asks for one kind after another."""

    @property
    def given_bytes(self) -> int:
        """The bytes that this process gave back for neighbours so far."""

    def as_dict(self) -> dict[str, int | float]:
        """Return the counts as a dictionary, by the names of the properties."""

    def _repr_html_(self) -> str | None:
        """Return the counts as HTML, for a notebook."""

    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...

@final
class OomCallback:
    """A callback that :func:`on_oom` registered, until it is removed.

    As a context manager it is removed at the end of the block.
    """

    def remove(self) -> None:
        """Remove the callback, which is not called again, except for running calls on other threads."""

    def __enter__(self) -> Self:
        """Return this object."""

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]:
        """Remove the callback, as :meth:`remove` does."""

@final
class MemoryRange:
    """Addresses that stay, whose pages of physical memory come and go; :meth:`MemPool.reserve_range` makes one.

    It is for large data that is only partly needed at any time, and that graphs, tensors and kernels hold pointers
    into: a KV cache, an embedding table, a growing array. No call waits for the GPU while there is memory: a
    decommitted page stays mapped until the streams that used it are done, and then serves the pool's next requests.

    A page that is not committed must not be accessed: on a GPU that is an illegal access, after which all calls fail.

    ``torch.from_dlpack(range)`` and ``cupy.from_dlpack(range)`` make an array of all its bytes, committed or not. When
    the object and all such arrays are gone, the range frees itself in the order of the streams that used it.

    >>> pool = gpupool.MemPool()
    >>> stream = gpupool.Stream()
    >>> with pool.reserve_range(64 << 20) as cache:
    ...     cache.commit([3, 5], stream, fill=0)
    ...     cache.decommit([3], stream)
    ...     cache.committed_bytes
    2097152
    """

    @property
    def ptr(self) -> int:
        """The address of the range's first byte."""

    @property
    def nbytes(self) -> int:
        """The bytes of the range, committed or not."""

    @property
    def page_bytes(self) -> int:
        """The bytes of a page."""

    @property
    def committed_bytes(self) -> int:
        """The bytes of its committed pages.

        Raises:
            InvalidValue: The range was freed.
        """

    @property
    def discardable_bytes(self) -> int:
        """The bytes of its committed pages that may be taken now: they have a priority and no pins.

        Raises:
            InvalidValue: The range was freed.
        """

    @property
    def device(self) -> int:
        """The device's ordinal."""

    @property
    def pool_id(self) -> PoolId:
        """The id of its pool."""

    def commit(
        self,
        start: SupportsIndex | PageNumbers,
        nbytes: SupportsIndex | None = None,
        stream: StreamLike | None = None,
        *,
        priority: int | None = None,
        fill: SupportsIndex | None = None,
    ) -> None:
        """Give pages physical memory, for later work of the stream: ``(start, nbytes, stream)`` or ``(pages, stream)``.

        A page that is already committed keeps its content and gets the new priority. For the others, memory that is
        still there is taken back, then free pages of the pool are moved, then new ones are created; if there are none,
        other pools release what they can, as for any request. If that fails, nothing is committed.

        >>> cache = gpupool.MemPool().reserve_range(64 << 20)
        >>> cache.commit(0, 4 << 20)
        >>> cache.commit(range(8, 12), priority=1)
        >>> cache.committed_bytes, cache.discardable_bytes
        (12582912, 8388608)

        Args:
            start: The first byte; or page numbers: a sequence, or an array of integers with one dimension.
            nbytes: The number of bytes. Both are multiples of :attr:`page_bytes`.
            stream: The stream; this thread's current one by default.
            priority: If given, the pages may be taken when memory is short, those with the lowest number first, unless
                they are pinned; see :meth:`pin`.
            fill: A byte with which to fill the pages that were not committed. Otherwise their content is undefined.

        Raises:
            OutOfMemory: There is not enough memory; the message says what holds it.
            InvalidValue: The bytes are not whole pages, the range has no such page or was freed, the pool was closed,
                or a stream of the pool is being captured. It is also raised if another thread commits or decommits some
                of the pages and this is called in a callback that may not wait for that (see :func:`on_oom`), or if a
                call that has some of the pages' former memory in hand is in a callback.
            Asleep: The pool is asleep.
        """

    def decommit(
        self,
        start: SupportsIndex | PageNumbers,
        nbytes: SupportsIndex | None = None,
        stream: StreamLike | None = None,
    ) -> None:
        """Take the memory of pages away: ``(start, nbytes, stream)`` or ``(pages, stream)``; nothing waits.

        The memory serves others once the work so far is done on this stream and on those that the pages were committed
        and pinned for. A page that is not committed stays so.

        Args:
            start: As for :meth:`commit`.
            nbytes: As for :meth:`commit`.
            stream: A stream that also used the pages. Name other code's streams here, since they may be destroyed
                later: for a stream that only earlier calls named, gpupool waits for all work on the device.

        Raises:
            InvalidValue: As for :meth:`commit`, and if a page is pinned.
            Asleep: The pool is asleep.
        """

    def pin(self, pages: PageNumbers, stream: StreamLike | None = None) -> bytes:
        """Keep those of the pages that are committed from being taken for want of memory, until :meth:`unpin`.

        >>> cache = gpupool.MemPool().reserve_range(64 << 20)
        >>> cache.commit([0, 2], priority=0)
        >>> there = cache.pin([0, 1, 2])
        >>> bin(there[0])
        '0b101'
        >>> cache.unpin([0, 2])

        Args:
            pages: Page numbers, as for :meth:`commit`.
            stream: The stream whose work uses them.

        Returns:
            A bit for each page, in the order given, the lowest bit of a byte first: 1 if it is committed, and so
            pinned. ``numpy.unpackbits(numpy.frombuffer(bits, numpy.uint8), count=len(pages), bitorder="little")``
            returns them as an array. A page that is not committed is not pinned; commit it, and pin it then.

        Raises:
            InvalidValue: The range has no such page, or was freed; or as for :meth:`commit` in a callback.
        """

    def unpin(self, pages: PageNumbers, stream: StreamLike | None = None) -> None:
        """End one pin of each page, which may be taken once the work so far on the stream is done, too.

        Args:
            pages: Page numbers, as for :meth:`commit`.
            stream: A stream whose work uses them.

        Raises:
            InvalidValue: A page has no pin, and then none is changed; or the range has no such page, or was freed.
        """

    def prepare(self, pages: SupportsIndex) -> None:
        """Keep physical memory ready for this many pages, made by a background thread, so that a commit only maps it.

        The memory counts as reserved and cached memory of the pool, and goes back with :meth:`MemPool.trim`, when the
        pool sleeps, and when memory is short. 0 ends this.

        Args:
            pages: How many pages of :attr:`page_bytes`, at most those of the range.

        Raises:
            InvalidValue: The range has fewer pages, or was freed.
            Unavailable: The system starts no thread.
        """

    def __del__(self) -> None:
        """Stop calling callbacks, before Python collects them as garbage with the range."""

    def on_discard(self, callback: Callable[[list[int]], object]) -> DiscardCallback:
        """Call ``callback(pages)`` with the numbers of pages that were taken for want of memory.

        The callback runs on the thread of the request that lacked memory, with no lock held, until
        :meth:`DiscardCallback.remove` or the range's end, also if the object that this returns dies; :func:`on_oom`
        says what it may not do. If another process got the pages, the next call of this range reports them, on
        whichever thread it is; a commit that finds one taken reports it before it returns.

        Args:
            callback: A callable. An exception is logged and given to ``sys.unraisablehook``; Ctrl-C reaches the main
                thread soon after.

        Returns:
            An object that can remove the callback.
        """

    def free(self, stream: StreamLike | None = None) -> None:
        """Free the range, in the order of the streams that used it and of this one. A second call does nothing.

        Args:
            stream: A stream that also used it.

        Raises:
            InvalidValue: A page is pinned, or a DLPack array uses the range; or as for :meth:`commit` in a callback.
        """

    def __enter__(self) -> Self:
        """Return this object."""

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]:
        """Free the range, as :meth:`free` does."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """All its bytes as an array, version 3. Some libraries ask the driver about the first page: commit that first.

        Raises:
            AttributeError: The memory is simulated.
            InvalidValue: The range was freed.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's type and ordinal of the device."""

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return all its bytes as a DLPack capsule, for ``from_dlpack``. Its pages are ordered by their commits.

        Args:
            stream: Ignored: the pages are used in the order of the streams that they are committed for.
            max_version: The highest version that the consumer takes.
            dl_device: The requested device, which must be the one that the memory is on.
            copy: True is refused, because nothing is copied.

        Raises:
            BufferError: The memory would have to be copied or moved.
            InvalidValue: The range was freed.
        """

    def _repr_html_(self) -> str | None:
        """Return what the range's repr says as HTML, for a notebook."""

@final
class DiscardCallback:
    """A callback that :meth:`MemoryRange.on_discard` registered, until it is removed or the range is gone.

    As a context manager it is removed at the end of the block.
    """

    def remove(self) -> None:
        """Remove the callback, which is not called again, except for running calls on other threads."""

    def __enter__(self) -> Self:
        """Return this object."""

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]:
        """Remove the callback, as :meth:`remove` does."""

@final
class SegmentCallback:
    """A callback that :meth:`MemPool.on_segment` registered, until it is removed or the pool is gone.

    As a context manager it is removed at the end of the block.
    """

    def remove(self) -> None:
        """Remove the callback, which is not called again, except for running calls on other threads.

        The release of existing segments is no longer reported: deregister them yourself.
        """

    def __enter__(self) -> Self:
        """Return this object."""

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]:
        """Remove the callback, as :meth:`remove` does."""

@final
class SegmentEvent:
    """A segment of a pool that is added or removed, as :meth:`MemPool.on_segment` reports it."""

    def __new__(
        cls, kind: Literal["added", "removed"], address: int, nbytes: int, device: int, pool_id: PoolId
    ) -> Self: ...
    @property
    def kind(self) -> Literal["added", "removed"]:
        """``"added"`` for a segment that exists, ``"removed"`` for one that is about to be released."""

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

        Its memory is on the NUMA node nearest to the stream's device, and is reused once the work that the stream had
        at the free is done.
        """

    @property
    def capsule(self) -> Any:
        """A PyCapsule named ``gpupool.c_api`` that points to the table of C functions that ``gpupool.h`` declares."""

    def feed(self, pool: MemPool | PoolToken | None = None) -> tuple[int, int]:
        """Return a pair like :attr:`malloc` and :attr:`free`, for an allocator that has its own cache.

        The functions allocate from the pool regardless of the calling thread's scopes, and return null if there is no
        memory. They behave like ``cudaMalloc`` and ``cudaFree``: the memory may be used on any stream immediately, and
        freed memory is reused after all work on the device so far. They do not call :func:`on_oom` callbacks. After
        the pool was dropped they return null.

        Args:
            pool: The pool; each device's default pool by default.

        Raises:
            InvalidValue: The pool was dropped.
            Unavailable: 64 pools have such functions already.
        """

    def bare_feed(self, pool: MemPool | PoolToken | None = None) -> tuple[int, int, int]:
        """Return the addresses of functions like those of :meth:`feed`, with the fewest arguments.

        ``void *(size_t)`` allocates on the pool's device, ``void (void *)`` frees, and ``void (void)`` does what
        :func:`empty_cache` does. ONNX Runtime takes such functions; see :func:`gpupool.onnxruntime.provider_options`.

        Args:
            pool: The pool; by default the default pool of the calling thread's current device.

        Raises:
            Unavailable: 64 pools have such functions already.
        """

c_api: CApi

def attach(
    token: ShareToken | bytes, stream: StreamLike | None = None, device: SupportsIndex | None = None
) -> DeviceBuffer:
    """Attach a buffer that another process of the same user shares: the same memory, without a copy.

    Work on the stream waits for what was submitted before :meth:`DeviceBuffer.share`. When the buffer is freed, its
    owner can reuse the memory once this process's work with it is done. If the owner ends first, the memory is kept.
    Released memory stays mapped here until its owner releases it to the driver, so that attaching a buffer at the same
    place again is fast. In containers this needs no ptrace permission, but the same network and PID namespace.

    >>> buffer = gpupool.empty(4)
    >>> buffer.copy_from(b"gpu!")
    >>> same = gpupool.attach(buffer.share())  # in another process as well
    >>> bytes(same), same.is_attached
    (b'gpu!', True)

    Args:
        token: What :meth:`DeviceBuffer.share` returned, or its bytes.
        stream: The stream that will use it first, by default the device's current one.
        device: The device that will use the memory, by default the one that it is on; another one must be able to
            access it.

    Raises:
        InvalidValue: The token is from another machine, boot, user or version of gpupool; the buffer was freed; the
            device cannot access it, or is not visible here; or the stream is captured.
        Unavailable: The owner has ended, does not answer or cannot be reached, or this process may open no more files.
        LibraryError: The driver refuses. Nothing has changed then.
    """

def share_at(ptr: int, stream: StreamLike) -> tuple[ShareToken, int]:
    """Share the live block that contains an address, as :meth:`DeviceBuffer.share`, for an adapter that has no buffer.

    Return the token, and the address's offset in the block.

    Args:
        ptr: The address.
        stream: Processes that attach the block wait for its work so far.

    Raises:
        InvalidValue: No block is there, or it cannot be shared.
    """

@disjoint_base
class CudaCoreMemory:
    """The compiled base class of ``gpupool.cuda_core.MemoryResource``.

    Args:
        make_buffer: ``cuda.core.Buffer.from_handle``, or what takes its arguments.
        stream: ``cuda.core.Stream``.
        device: The device's ordinal.
        pool: The pool for all requests; None for that of the thread's scope.
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
        """Whether a stream's handle is read from where cuda.core has it, without a call of ``__cuda_stream__``."""

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
        failed: Called with the bytes and the error of a request that failed; the request returns its result.
    """

    def __new__(cls, cuda: Any, failed: Callable[[int, Exception], Any]) -> CupyAllocator: ...
    def malloc(self, nbytes: SupportsIndex, /) -> Any:
        """Return a ``cupy.cuda.MemoryPointer`` to this many bytes."""

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
    """Pinned memory in the form that ``cupy.cuda.PinnedMemoryPointer`` needs; it is freed when the object dies."""

    def __new__(cls, nbytes: SupportsIndex) -> CupyPinnedMemory: ...
    @property
    def ptr(self) -> int:
        """The address; 0 for 0 bytes."""

    @property
    def size(self) -> int:
        """The number of requested bytes."""

    def record_stream(self, stream: StreamLike) -> None:
        """Keep the memory, once freed, from being used again before this stream's work at that time is done."""

@final
class CupyPinnedAllocator:
    """An allocator for ``cupy.cuda.set_pinned_memory_allocator``.

    Args:
        pointer: ``cupy.cuda.PinnedMemoryPointer``.
        retry: Called with the bytes and the error of a request that ran out of memory; the request returns its result.
        otherwise: The allocator of threads that have not called :meth:`enter`; None to serve all threads.
    """

    def __new__(
        cls,
        pointer: Callable[[CupyPinnedMemory, int], Any],
        retry: Callable[[int, OutOfMemory], Any],
        otherwise: Callable[[int], Any] | None = None,
    ) -> CupyPinnedAllocator: ...
    def malloc(self, nbytes: SupportsIndex) -> Any:
        """Return a pointer to this many bytes."""

    @staticmethod
    def enter() -> None:
        """Let the calling thread be served until :meth:`leave`; calls nest."""

    @staticmethod
    def leave() -> None:
        """End what the last :meth:`enter` began."""

def empty_pinned_cache() -> None:
    """Release free pinned memory to the system, but no device memory."""

def owns(address: SupportsIndex) -> bool:
    """Return whether an address is in gpupool's memory."""

def fence(stream: StreamLike, delay: bool = True) -> bool:
    """Let later work on the stream's device, on every stream, wait for all work so far, and return True.

    The host does not wait, unless the driver is older than CUDA 12.5: there it waits for the device. Memory of
    ``stream`` that was used on unknown streams may then be freed. While gpupool knows of a capture, which a fence
    would invalidate, this does nothing and returns False.

    Args:
        stream: The stream.
        delay: False to let later work on this stream alone wait. Then pinned memory that was used on unknown streams
            may be freed on it.

    Raises:
        LibraryError: The driver refuses.
    """

def follow_blocking(stream: StreamLike) -> bool:
    """Let later work on the stream wait for all work so far on its device's blocking streams, and return True.

    Memory of ``stream`` that was used on unknown blocking streams may then be freed. The host does not wait. While the
    stream or a blocking stream is captured, this does nothing and returns False.

    Args:
        stream: The stream.

    Raises:
        LibraryError: The driver refuses.
    """

def is_captured(stream: StreamLike) -> bool:
    """Return whether work on the stream is recorded into a graph.

    Args:
        stream: The stream.

    Raises:
        LibraryError: The driver refuses.
    """

def graph_pool_handle(is_user_created: bool = True) -> PoolId:
    """Return a new pool id, for :func:`begin_allocate_to_pool`.

    See https://docs.pytorch.org/docs/stable/generated/torch.cuda.graphs.graph_pool_handle.html

    >>> pool_id = gpupool.graph_pool_handle()
    >>> gpupool.torch.begin_allocate_to_pool(0, pool_id)
    >>> gpupool.empty(1000).pool_id == pool_id
    True
    >>> gpupool.torch.end_allocate_to_pool(0, pool_id)
    >>> gpupool.torch.release_pool(0, pool_id)

    Args:
        is_user_created: True for an id like those of private pools, ``(0, n)``, False for one like those of pools for
            graph capture, ``(n, 0)``.
    """

def begin_allocate_to_pool(device: SupportsIndex, pool_id: PoolId) -> None:
    """Let this thread allocate from the pool with this id, and add one to the pool's use count.

    If an id of :func:`graph_pool_handle` has no pool yet, the pool is created.

    Args:
        device: The device's ordinal.
        pool_id: The pool's id.

    Raises:
        InvalidValue: There is no pool with this id, or it no longer exists, is closed or belongs to another device.
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
    """Subtract one from a pool's use count; at zero its memory is released, and its id becomes invalid.

    Args:
        device: The device's ordinal.
        pool_id: The pool's id.

    Raises:
        InvalidValue: As :func:`begin_allocate_to_pool`, or the use count is zero.
    """

def pool_use_count(device: SupportsIndex, pool_id: PoolId) -> int | None:
    """Return a pool's use count; None if the id was handed out but its pool does not exist yet.

    Args:
        device: The device's ordinal.
        pool_id: The pool's id.

    Raises:
        InvalidValue: As :func:`begin_allocate_to_pool`.
    """

def empty_cache() -> int:
    """Release free memory of every pool to the driver, also inside scopes, and return its size.

    This includes pinned host memory. Large pieces of it, which the driver releases only once running kernels have
    ended, are released a little later, on a thread of gpupool; they are not included in the returned bytes, and count
    as reserved until then.

    Memory that pools reserve is kept, and so are segments that may be registered, those of pools with ``no_split``,
    ``segments`` or an ``allocator``: they are released by :meth:`MemPool.trim`, or with their pool.

    Idle mappings of buffers that this process had attached are unmapped. If other processes still map memory that this
    one has freed, the call waits for them, at most a quarter of a second.

    >>> gpupool.empty(1 << 20).free()
    >>> released = gpupool.empty_cache()

    Returns:
        The bytes of device memory that were released immediately.

    Raises:
        LibraryError: The driver refuses to take memory back.
    """

def sleep(device: SupportsIndex | None = None, backup: Literal["host"] | None = "host") -> int:
    """Put all of a device's memory to sleep: its default pool, every :class:`MemPool`, and the pools of graphs.

    Each pool falls asleep as by :meth:`MemPool.sleep`, also while its blocks serve other pools. Idle handles are
    destroyed with their workspaces, as by :meth:`HandlePool.trim`, and created again when needed. Pools that cannot
    sleep, those with ``no_split``, ``segments`` or an ``allocator``, stay awake, and the log names each.

    Args:
        device: The device; the current one by default.
        backup: As for :meth:`MemPool.sleep`.

    Returns:
        The bytes that were released to the driver; 0 for pools that are asleep already.

    Raises:
        InvalidValue: A stream of the device is captured.
        OutOfMemory: There is not enough pinned memory. After any error, the pools that this call put to sleep are
            awake again, if there is enough memory for them.
    """

def wake(device: SupportsIndex | None = None) -> int:
    """Wake all of a device's sleeping memory, as by :meth:`MemPool.wake`, and return the number of allocated bytes.

    Raises:
        OutOfMemory: There is not enough memory for all pools. Each is awake or still asleep, and another call wakes
            the rest.
    """

def set_neighbour(
    name: str | None = None,
    guarantee: SupportsIndex = 0,
    most: SupportsIndex | None = None,
    priority: int = 0,
    device: DeviceLike | None = None,
) -> None:
    """Make this process a neighbour of the user's other processes that use gpupool on the same devices.

    When one of them finds no memory, it asks the others before its request fails: for free memory and idle handles,
    then for discardable pages of memory ranges, then for pools made with ``sleeps_for_others``. Those above their
    ``most`` are asked first, then those of the lowest ``priority``. Each gives what it can, within 200 ms for all
    together, or ``GPUPOOL_NEIGHBOUR_DEADLINE_MS``. Only processes of the same user see this one, and they learn nothing
    but numbers, its name and the names of its pools. :func:`claim` and ``MemPool(sleeps_for_others=True)`` make a
    process a neighbour as well, and so does its first memory with ``GPUPOOL_NEIGHBOURS=1`` in the environment. It stays
    a neighbour.

    >>> gpupool.set_neighbour("trainer", priority=-1)
    >>> [each.priority for each in gpupool.neighbours() if each.is_self]
    [-1]

    Args:
        name: The process's name in lists and errors, cut to 64 bytes; by default the name that was set before, or the
            program's.
        guarantee: Bytes of the device that this process is never asked to go below.
        most: Bytes of the device beyond which this process is asked first, and, for 5 s after it was asked, gives back
            what it has free; None for no such bound. The process may have more: for a limit, see :class:`MemPool`.
        priority: How much this process matters: those with the lowest number are asked first.
        device: The device that this is for; the thread's current one by default.

    Raises:
        InvalidValue: There is no such device, or ``guarantee`` is above ``most``.
        Unavailable: The system has no thread or descriptor left, or the directory of ``GPUPOOL_NEIGHBOURS`` cannot be
            used.
    """

@final
class Neighbour:
    """A process that uses gpupool on a device, as :func:`neighbours` found it at one moment. All sizes are in bytes.

    >>> gpupool.set_neighbour("server")
    >>> [each.name for each in gpupool.neighbours() if each.is_self]
    ['server']
    """

    def __new__(
        cls,
        pid: int,
        name: str,
        device: int,
        reserved_bytes: int,
        live_bytes: int,
        free_bytes: int,
        asleep_bytes: int,
        holder_bytes: int | None,
        discardable_bytes: int,
        offered_bytes: int,
        claimed_bytes: int,
        guarantee: int,
        most: int | None,
        priority: int,
        system_limit: int | None,
        is_self: bool,
        holders: list[tuple[str, int]] | None,
        pools: list[NeighbourPool] | None,
    ) -> Self: ...
    @property
    def pid(self) -> int:
        """The process's id, as the process itself knows it."""

    @property
    def name(self) -> str:
        """The process's name, as the process states it."""

    @property
    def device(self) -> int:
        """The device's ordinal in this process."""

    @property
    def reserved_bytes(self) -> int:
        """The device memory that it has."""

    @property
    def live_bytes(self) -> int:
        """The bytes of its live blocks."""

    @property
    def free_bytes(self) -> int:
        """Its free bytes, cached for its next requests."""

    @property
    def asleep_bytes(self) -> int:
        """Its live bytes that are asleep."""

    @property
    def holder_bytes(self) -> int | None:
        """The bytes that other libraries of a watched process hold besides; None without ``gpupool run --watch``."""

    @property
    def discardable_bytes(self) -> int:
        """The bytes of its memory ranges that may be taken."""

    @property
    def offered_bytes(self) -> int:
        """The bytes of pools that it would put to sleep for others now."""

    @property
    def claimed_bytes(self) -> int:
        """The bytes that it has claimed and not taken yet."""

    @property
    def guarantee(self) -> int:
        """The bytes that it is never asked to go below."""

    @property
    def most(self) -> int | None:
        """The bytes beyond which it is asked first; None for no such bound."""

    @property
    def priority(self) -> int:
        """Its priority; those with the lowest number are asked first."""

    @property
    def system_limit(self) -> int | None:
        """The most bytes that the system lets it have; None for no such limit, or none that can be read.

        That is the smallest of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT in its environment, for CUDA's Multi-Process Service,
        ``dmem.max`` of its control group and those above, on Linux, and the hard limit that NVIDIA's driver has for the
        group, as ``nvidia-smi memory-limits`` sets it, where NVML reports it.
        """

    @property
    def is_self(self) -> bool:
        """True if it is this process."""

    @property
    def holders(self) -> list[tuple[str, int]] | None:
        """The names of its other libraries and the bytes that each holds, the largest first, if it is watched.

        At most 64 are listed; None if it was not asked for its pools.
        """

    @property
    def pools(self) -> list[NeighbourPool] | None:
        """Its pools on the device, the largest first, at most 64; None if it was not asked for them."""

@final
class NeighbourPool:
    """A pool of a neighbour, as :func:`neighbours` found it at one moment. All sizes are in bytes.

    >>> gpupool.set_neighbour()
    >>> pool = gpupool.MemPool(reserve=4 << 20)
    >>> (this,) = [each for each in gpupool.neighbours(pools=True) if each.is_self]
    >>> [each.reserved_bytes for each in this.pools if each.id == pool.id]
    [4194304]
    """

    def __new__(
        cls,
        id: PoolId,
        given_name: str | None,
        reserved_bytes: int,
        live_bytes: int,
        free_bytes: int,
        asleep_bytes: int,
    ) -> Self: ...
    @property
    def id(self) -> tuple[int, int]:
        """The pool's id in that process; ``(0, 0)`` for the device's default pool."""

    @property
    def given_name(self) -> str | None:
        """The name that a framework gave the pool, cut to 64 bytes; None without a name."""

    @property
    def reserved_bytes(self) -> int:
        """The device memory that it has."""

    @property
    def live_bytes(self) -> int:
        """The bytes of its live blocks."""

    @property
    def free_bytes(self) -> int:
        """Its free bytes, cached for its next requests."""

    @property
    def asleep_bytes(self) -> int:
        """Its live bytes that are asleep."""

def neighbours(device: DeviceLike | None = None, *, pools: bool = False) -> list[Neighbour]:
    """Return the neighbours on a device, by their ids.

    The call ends once no answer has come for 100 ms, and leaves out processes that have not answered, such as stopped
    ones. This process is in the list if it is a neighbour; the call does not make it one.

    >>> gpupool.set_neighbour()
    >>> any(each.is_self for each in gpupool.neighbours())
    True

    Args:
        device: The device; the thread's current one by default.
        pools: Whether to ask them for their pools as well, which they answer in another 100 ms.

    Raises:
        InvalidValue: There is no such device.
        Unavailable: The directory of ``GPUPOOL_NEIGHBOURS`` cannot be read, or no descriptor is left.
    """

@final
class MemoryClaim:
    """Memory that this process is about to take, as :func:`claim` returns it, until it is released or dropped.

    Memory that the process has beyond what it had when the claim was made uses the claim up, the oldest claim first;
    memory that it gives back is claimed again. It makes no difference whether the claimed memory is free in the
    process's cache or for the driver. While there is a claim, the process gives no neighbour the free memory that the
    claim is for, and none of its pools sleeps for others. The claim ends with the process at the latest. A process that
    does not answer its neighbours, because it is stopped, loses its claim if what they claim meanwhile leaves no room
    for it: a warning in the log says so.

    >>> with gpupool.claim(1 << 20) as claim:
    ...     claim.left
    1048576
    """

    @property
    def device(self) -> int:
        """The device's ordinal."""

    @property
    def nbytes(self) -> int:
        """The claimed bytes."""

    @property
    def left(self) -> int:
        """The bytes that are not taken yet; 0 once the claim is over or lost."""

    def release(self) -> None:
        """End the claim; a second call does nothing."""

    def __enter__(self) -> Self:
        """Return the claim."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> Literal[False]:
        """End the claim, as :meth:`release` does."""

def claim(nbytes: SupportsIndex, device: DeviceLike | None = None, timeout: float = 0) -> MemoryClaim:
    """Claim memory before it is taken, so that programs that measure what is free at the same time see each other.

    The neighbours count it in :func:`available_memory` and in their own claims. Of two that claim the same memory at
    once, the first gets it. Nothing is taken, and no neighbour gives anything back before a request needs it. This
    process becomes a neighbour.

    With a timeout the call waits until that much is available, behind all that claimed before. So processes whose work
    does not fit into the device's memory together take turns. A turn takes one claim: two processes that wait for more
    than they have claimed may wait for each other.

    Args:
        nbytes: The bytes, beyond what the process has.
        device: The device; the thread's current one by default.
        timeout: How many seconds to wait at most; ``float("inf")`` for no end, which is refused in a callback of
            gpupool.

    Returns:
        The claim, which ends with a ``with`` block, by ``release()``, or when it is dropped.

    Raises:
        OutOfMemory: That much is not available, as :func:`available_memory` counts it, when the time is over, or is
            more than the device has.
        InvalidValue: There is no such device, or the timeout is not a number of seconds.
        Unavailable: As for :func:`set_neighbour`; or a neighbour could not be asked what it has claimed.
    """

def available_memory(device: DeviceLike | None = None) -> int:
    """Return how many bytes of a device this process could have.

    This is the memory that the driver and this process have free, and that its neighbours would give back, also by
    putting pools to sleep, less what they have claimed. A limit of the system counts as the device's size, see
    :attr:`Neighbour.system_limit`; that of a control group counts as one for all neighbours. Other processes may take
    the memory meanwhile, unless this process claims it with :func:`claim`. This process need not be a neighbour.

    >>> gpupool.available_memory() > 0
    True

    Args:
        device: The device; the thread's current one by default.

    Raises:
        InvalidValue: There is no such device.
        LibraryError: The driver does not report what is free.
        Unavailable: As for :func:`neighbours`.
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

def reset_peak_stats(device: SupportsIndex | None = None) -> None:
    """Reset all peaks of a device to the current values: those of its memory pools, and of handles there.

    Counters, such as the number of allocations, are never reset.

    Args:
        device: The device's ordinal; the thread's current device by default.
    """

def memory_snapshot(
    mempool_id: PoolId | None = None, include_traces: bool = True, *, device: SupportsIndex | None = None
) -> dict[str, Any]:
    """Return the memory of every pool, block by block, and the events that :func:`record_memory_history` has kept.

    The result has the format of ``torch.cuda.memory._snapshot()``, which PyTorch's viewers read: ``segments`` with
    their blocks, ``device_traces`` with a list of events for each device, ``allocator_settings`` and
    ``external_annotations``. Sizes are in bytes; events have the requested sizes; ``time_us`` counts from 1970. gpupool
    adds ``thread`` to each event, as the operating system numbers it, and ``handle_events``: ``time_us``, ``library``,
    ``device``, ``action`` (``create``, ``take``, ``give_back``, ``discard``, ``destroy``), ``handle`` and ``thread``;
    and ``holders``, where ``gpupool run --watch`` has started the process: what other libraries hold now, as
    :func:`memory_summary` has it. Pinned host memory is in ``pinned_segments`` and its events in ``pinned_trace``, with
    ``numa`` in place of ``device``.

    The snapshot is consistent: allocations on other threads wait meanwhile, about 0.1 us for each block and event.

    See https://pytorch.org/memory_viz, and :func:`dump_snapshot`, which writes a file for it.

    >>> buffer = gpupool.empty(1000)
    >>> sorted(gpupool.memory_snapshot())[:3]
    ['allocator_settings', 'device_traces', 'external_annotations']

    Args:
        mempool_id: A pool's id, for only its segments and events; every pool by default, and for ``(0, 0)``.
        include_traces: False to leave the events out.
        device: A device's ordinal, for only that device; all devices by default.

    Raises:
        InvalidValue: There is no pool with this id, or it no longer exists or belongs to another device.
    """

def record_memory_history(
    enabled: Literal["all", "state"] | None = "all",
    context: Literal["all", "alloc", "state"] | None = "all",
    stacks: Literal["python"] = "python",
    max_entries: SupportsIndex = ...,
    clear_history: bool = False,
    skip_actions: Sequence[str] | None = None,
) -> None:
    """Start to record events of memory and handles, for :func:`memory_snapshot`; this does not initialise a device.

    A stack consists of the innermost 64 Python frames of a thread that holds the GIL. PyTorch's operators release it
    before they allocate, so their events have no frames. A second call changes the settings. The parameters are those
    of ``torch.cuda.memory._record_memory_history``.

    See https://docs.pytorch.org/docs/stable/torch_cuda_memory.html

    >>> gpupool.record_memory_history()
    >>> gpupool.empty(1000).free()
    >>> events = gpupool.memory_snapshot()["device_traces"][0]
    >>> "alloc" in [event["action"] for event in events]
    True
    >>> gpupool.record_memory_history(None)

    Args:
        enabled: ``"all"`` keeps events, ``"state"`` only the call stacks of live blocks, None ends the recording and
            discards everything.
        context: The call stacks to record: ``"state"`` those of live blocks' allocations, ``"alloc"`` also those of
            every allocation, ``"all"`` also those of every free, None no stacks.
        stacks: The language of the frames.
        max_entries: How many of the newest events to keep, of memory and of handles each, 64 bytes an event; 1,000,000
            by default.
        clear_history: Discard earlier events.
        skip_actions: Leave out events with these values of ``action``.

    Raises:
        InvalidValue: There is no such setting.
    """

def get_memory_history() -> dict[str, Any] | None:
    """Return what is recorded, as arguments of :func:`record_memory_history`; None if nothing is.

    >>> gpupool.record_memory_history(context="state", max_entries=1000, skip_actions=["free_requested"])
    >>> gpupool.get_memory_history()
    {'enabled': 'all', 'context': 'state', 'max_entries': 1000, 'skip_actions': ['free_requested']}
    >>> gpupool.record_memory_history(None)
    """

def on_oom(callback: Callable[[int, int], Any]) -> OomCallback:
    """Call ``callback(device, nbytes)`` when memory has run out, before the request fails.

    The callback returns True if it freed memory, and the request is then retried. It runs on the requesting thread,
    with no lock held. If it allocates and finds no memory, no callback is called. If it raises an exception, the
    request ends with that exception, whose ``__context__`` is the :class:`OutOfMemory`. A framework's request fails as
    if memory had run out; Ctrl-C then reaches the main thread soon after.

    It stays registered until :meth:`OomCallback.remove`, also if the object that this returns dies.

    Other threads wait for a call that commits pages of a :class:`MemoryRange`, or puts a pool to sleep or wakes it. So
    a callback of such a call, of whatever kind, must not wait for another thread's call, which may be waiting for this
    one: gpupool refuses that with :class:`InvalidValue`. The callback may call everything else.

    >>> cache = [gpupool.empty(1 << 20)]
    >>> def forget(device, nbytes):
    ...     is_used = bool(cache)
    ...     cache.clear()
    ...     return is_used
    >>> callback = gpupool.on_oom(forget)
    >>> callback.remove()

    Args:
        callback: Takes the device's ordinal and the number of requested bytes.

    Returns:
        An object that can remove the callback, or does so at the end of a ``with`` block.

    Raises:
        InvalidValue: ``callback`` is not callable.
    """

def oom_callbacks() -> list[str]:
    """Return the names of the callbacks of :func:`on_oom`, in the order in which they are called.

    >>> def drop_my_cache(device, nbytes):
    ...     return False
    >>> registered = gpupool.on_oom(drop_my_cache)
    >>> gpupool.oom_callbacks()
    ['drop_my_cache']
    >>> registered.remove()
    """

def set_per_process_memory_fraction(fraction: float, device: SupportsIndex | None = None) -> None:
    """Limit the reserved memory to a fraction of the device's, as ``torch.cuda.set_per_process_memory_fraction`` does.

    >>> gpupool.set_per_process_memory_fraction(0.5)
    >>> gpupool.get_per_process_memory_fraction()
    0.5
    >>> gpupool.set_per_process_memory_fraction(1.0)

    Args:
        fraction: The fraction, 0 to 1; 1 for no limit.
        device: The device's ordinal; the thread's current device by default.

    Raises:
        InvalidValue: ``fraction`` is not from 0 to 1, or there is no such device.
    """

def get_per_process_memory_fraction(device: SupportsIndex | None = None) -> float:
    """Return the fraction that :func:`set_per_process_memory_fraction` set, 0 to 1; 1 by default.

    Args:
        device: The device's ordinal; the thread's current device by default.
    """

def enable_peer_access(device: SupportsIndex, peer: SupportsIndex) -> None:
    """Let ``peer`` read and write gpupool's memory on ``device``, existing and later.

    Once it returns, the peer has access, whatever other threads do with the memory meanwhile. This includes buffers
    that are attached for ``device`` if the peer can access the device that has them.

    See https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PEER__ACCESS.html

    Args:
        device: The ordinal of the device that has the memory.
        peer: The ordinal of the device that will access it.

    Raises:
        InvalidValue: There is no such device, or the two cannot access each other.
        LibraryError: The driver refuses; the peer then gets no access to later memory, and the call may be repeated, at
            best after some blocks of the device were freed.
    """

def peers(device: SupportsIndex | None = None) -> list[int]:
    """Return the devices that :func:`enable_peer_access` has granted access to a device's memory.

    Args:
        device: The device's ordinal; by default the current device.
    """

@final
class ReplayResult:
    """The memory and time that the replay of one trace took; :func:`replay` returns it."""

    def __new__(
        cls,
        peak_reserved: int,
        driver_calls: int,
        moved_pages: int,
        cold_ns: float,
        warm_ns: float,
        reserved: list[tuple[int, int]],
    ) -> Self: ...
    @property
    def peak_reserved(self) -> int:
        """The maximum number of bytes that the allocator had reserved on the device."""

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
    lag: int = 0,
) -> ReplayResult:
    """Replay a trace in several threads at the same time, and return the memory and time that it took.

    ``watch`` is called about ten times a second with the part that is done, 0 to 1. What it raises, or Ctrl-C, ends the
    replay. With ``changes``, on one thread, the result also has what was reserved, as from :func:`replay_reserved`, in
    the untimed pass that the peak and the driver calls are from. With ``lag``, on a simulated device, each event is a
    piece of work on its stream, done when that many more have been submitted: at most a million.
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

    Integers have at most 64 bits, and keys are texts or integers; anything else raises :class:`InvalidValue`. Values
    that take more than about ``memory_limit`` bytes raise an OverflowError. What ``file`` raises is raised.
    """

def stream(stream: StreamLike) -> StreamScope:
    """Make ``stream`` this thread's current stream, and its device the current one, for a ``with`` block.

    Calls of gpupool without a stream use the current stream. The current streams of frameworks do not change.

    >>> stream = gpupool.Stream()
    >>> with gpupool.stream(stream.ptr):  # or a stream of CuPy, PyTorch, Numba, cuda.core
    ...     gpupool.current_stream() == stream
    True

    Args:
        stream: The stream: an object or an address, see :mod:`gpupool.typing`.

    Returns:
        A context manager, whose block's target is ``stream``.

    Raises:
        InvalidValue: ``stream`` is not a stream.
        Forked: The process is a forked child.
    """

def current_stream(device: SupportsIndex | None = None) -> Stream:
    """Return this thread's current stream, which calls without a stream use.

    It is that of the innermost ``with stream:`` or :func:`stream`, else the current one of the framework that was
    enabled last, else the legacy default stream.

    >>> gpupool.current_stream().ptr
    0

    Args:
        device: The device's ordinal; the thread's current device by default.

    Returns:
        The stream. A stream of other code is not kept alive, and is not destroyed with the object.

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
        InvalidValue: There is no such device, or one of its streams is being captured, which waiting would invalidate.
        LibraryError: The driver refuses, or earlier work on the device failed.
    """

def set_stream_source(source: Callable[[int], int] | None) -> Callable[[int], int] | None:
    """Choose the function that names a thread's current stream outside of :func:`stream`, and return the former one.

    ``source(device)`` returns an address, 0 for the default stream. None stands for the legacy default stream.
    Frameworks' adapters call this.
    """

def runtime() -> str:
    """Return the runtime in use: ``cuda``, ``hip`` or ``host``.

    It is the one in ``GPUPOOL_RUNTIME``, otherwise the first that has a device.

    >>> gpupool.runtime()
    'host'

    Raises:
        RuntimeUnavailable: The one that ``GPUPOOL_RUNTIME`` names has no device here, or, without that variable, a
            driver is there that does not work.
    """

def driver_version() -> tuple[int, int] | None:
    """Return the CUDA version that the driver supports, or HIP's, as major and minor; None for simulated devices."""

def device_info(device: SupportsIndex) -> dict[str, Any]:
    """Return what the driver reports about a device. No context is created.

    The keys are ``name``, ``uuid``, ``compute_capability`` (major and minor), ``pci_bus_id``, ``is_mig``,
    ``is_shareable`` and ``is_rdma`` (whether gpupool's memory can be shared with other processes, and registered by
    network cards), ``total_bytes`` and ``free_bytes``. A value is None where a device does not have it, and
    ``free_bytes`` where the process has no context there.
    """

def runtimes_passed_over() -> list[tuple[str, str, bool]]:
    """Return each platform that was passed over for the runtime, why, and whether it is there but does not work."""

def cuda_builds() -> list[tuple[str, int | None, dict[int, str]]]:
    """Return for each of CUDA's libraries the version of CUDA of the loaded file, and the packages.

    Each entry is the pool's name; the major version of CUDA, None if the library is not loaded or neither its file's
    name nor its folder says; and the pip package that has it, by CUDA's major version.
    """

def device_count() -> int:
    """Return the number of devices visible to the process, after ``CUDA_VISIBLE_DEVICES`` and similar variables.

    >>> gpupool.device_count() > 0
    True

    Raises:
        RuntimeUnavailable: The runtime that ``GPUPOOL_RUNTIME`` names has no device here, or, without that variable, a
            driver is there that does not work.
    """

def current_device() -> int:
    """Return the ordinal of this thread's current device, which CUDA and its frameworks share; 0 at first.

    >>> gpupool.current_device()
    0
    """

def set_memory_limit(fraction: float | None, nbytes: int | None) -> tuple[float | None, int | None]:
    """Limit the reserved memory on each device, also on those used later, and return the previous limits.

    The driver is not called.
    """

def get_memory_limit() -> tuple[float | None, int | None]:
    """Return the limits of the reserved memory on each device, as :class:`gpupool.worker.Settings` set them.

    The limits are a fraction of a device's memory and a number of bytes, of which the lower one applies; None means no
    limit. :func:`get_per_process_memory_fraction` returns the limit of one device alone. The driver is not called.

    >>> gpupool._native.get_memory_limit()
    (None, None)
    """

def devices_in_use() -> list[int]:
    """Return the ordinals of the devices whose memory the process has used, or on which it has created handles.

    The driver is not called.
    """

def is_watched() -> bool:
    """Return whether the process has the library that counts what other code in it holds; False in a forked child.

    >>> gpupool._native.is_watched()
    False
    """

def holders() -> list[dict[str, Any]]:
    """Return what other code in the process holds of each device; nothing unless the process is watched.

    The driver is not called.
    """

def summarize(device: SupportsIndex | None = None) -> dict[str, Any]:
    """Return what holds a device's memory, for :func:`gpupool.memory_summary`."""

def summarize_pinned() -> tuple[list[dict[str, Any]], int | None]:
    """Return the counts of pinned memory for each NUMA node that was used, and the limit of all together."""

def request_counts(device: SupportsIndex) -> tuple[int, int, int]:
    """Return the peak of a device's requested bytes, and how many requests were tried again, and how many failed."""

def pinned_times() -> tuple[int, int]:
    """Return the microseconds that all threads took to make pinned memory, and to give it back."""

def nearest_numa_node(device: SupportsIndex) -> int:
    """Return the number of the host's NUMA node that is nearest to a device."""

def add_site_packages(folders: Sequence[str | PathLike[str]]) -> None:
    """Tell the loader of libraries where this interpreter's wheels are."""

def simulate_costly_handles(create_seconds: float, nbytes: int) -> None:
    """Set how long creating a handle of the simulated library takes, and how many bytes of a device it uses."""

# Only in builds with the feature fault-injection, for gpupool's own tests.
def host_inject(call: str, kind: str = "other", after: int = 0, times: int = 1) -> None: ...
def host_clear_faults() -> None: ...
def host_reuse_extent_numbers() -> None: ...
def host_set_clock(nanoseconds: int) -> None: ...
def host_stream_of(handle: int) -> int: ...
def host_create_stream(device: int, blocking: bool = False) -> int: ...
def host_destroy_stream(stream: StreamLike) -> None: ...
def host_submit(stream: StreamLike) -> int: ...
def host_complete(stream: StreamLike, number: int) -> None: ...
def host_begin_capture(stream: StreamLike) -> None: ...
def host_end_capture(stream: StreamLike) -> None: ...
