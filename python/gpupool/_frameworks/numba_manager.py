"""The memory manager for Numba. It imports Numba, so it is imported when first used."""

import contextlib
import itertools
import weakref
from collections import deque
from functools import partial
from typing import Any

from cuda.bindings import driver as bindings
from numba.cuda.cudadrv import driver

from gpupool._native import (
    DeviceBuffer,
    Forked,
    LibraryError,
    OomCallback,
    OutOfMemory,
    RuntimeUnavailable,
    Stream,
    empty,
    fence,
    memory_stats,
    on_oom,
    runtime,
)

# Memory that waits is freed once there is a page of it, and enough of it for the request that comes.
_PAGE = 2 << 20


class MemoryManager(driver.GetIpcHandleMixin, driver.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """Device memory of one Numba context, from gpupool. Host memory stays Numba's own.

    https://nvidia.github.io/numba-cuda/user/external-memory.html

    Numba's memory belongs to no stream: kernels on any stream may use an array from the moment it exists, and still run
    when it dies. So it is memory of a stream of its own on which nothing runs, and the work of other streams with it
    before is done. The memory of dead arrays waits in Numba's list of pending deallocations, and behind a fence through
    the whole device all of it is freed at once; the host waits for nothing.
    """

    def __init__(self, *args: Any, context: Any, **named: Any) -> None:
        super().__init__(*args, context=context, **named)
        self._stream: Stream | None = None
        self._callback: OomCallback | None = None
        # The clock tells arrays that died before a fence from those that died after it.
        self._clock = itertools.count(1)
        self._fenced = 0
        self._dead_bytes = 0
        # The arrays that died while gpupool knew of a capture, which a fence would spoil.
        self._held: deque[tuple[int, DeviceBuffer]] = deque()

    def initialize(self) -> None:
        """Get ready when the context is made current.

        Raises:
            RuntimeUnavailable: gpupool's devices are not CUDA's.
        """
        if self._stream is not None:
            return
        if runtime() != "cuda":
            raise RuntimeUnavailable(
                f"gpupool's runtime is {runtime()}, whose memory Numba's kernels cannot use; unset GPUPOOL_RUNTIME"
            )
        self.deallocations.memory_capacity = self.get_memory_info().total
        this = weakref.ref(self)

        def give_up_the_dead(device: int, nbytes: int) -> bool:
            manager = this()
            return manager is not None and device == manager.context.device.id and manager._give_up_the_dead()

        self._callback = on_oom(give_up_the_dead)
        self._stream = Stream(self.context.device.id)

    def memalloc(self, size: int) -> Any:
        """Allocate ``size`` bytes, from the pool whose scope the thread is in.

        Raises:
            numba.cuda.cudadrv.driver.CudaAPIError: There is not enough memory: CUDA_ERROR_OUT_OF_MEMORY.
        """
        assert self._stream is not None
        if self._held or self._dead_bytes >= max(size, _PAGE):
            self._give_up_the_dead()
        try:
            buffer = empty(size, self._stream)
        except OutOfMemory as error:
            code = bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY
            raise driver.CudaAPIError(code, f"{error}") from error
        pointer = bindings.CUdeviceptr(buffer.ptr)
        finalizer = partial(self._bury, buffer, size)
        return driver.MemoryPointer(weakref.proxy(self.context), pointer, size, finalizer=finalizer)

    def _bury(self, buffer: DeviceBuffer, size: int) -> None:
        # This runs wherever the garbage collector does, so it takes no lock.
        self._dead_bytes += size
        self.deallocations.add_item(self._free, (next(self._clock), buffer), size)

    def _free(self, dead: tuple[int, DeviceBuffer]) -> None:
        if dead[0] > self._fenced and not self._fence():
            self._held.append(dead)
        # Otherwise this was the last reference to the buffer, whose end frees it.

    def _fence(self) -> bool:
        now = next(self._clock)
        try:
            if not fence(self._stream):  # type: ignore[arg-type]
                return False
        except Forked:
            # A forked child frees nothing of its parent's.
            return True
        except LibraryError:
            # The driver is older than CUDA 12.5. Waiting is what Numba does without gpupool.
            self.context.synchronize()
        self._fenced = now
        return True

    def _give_up_the_dead(self) -> bool:
        """Free the memory of dead arrays that waits, unless Numba defers that, and return whether any was freed."""
        if self.deallocations.is_disabled:
            return False
        count = len(self.deallocations) + len(self._held)
        self._dead_bytes = 0
        self.deallocations.clear()
        if self._held and self._fence():
            # Another thread may empty the list meanwhile.
            with contextlib.suppress(IndexError):
                for _ in range(len(self._held)):
                    dead = self._held.popleft()
                    if dead[0] > self._fenced:
                        self._held.append(dead)
        return count > 0

    def get_memory_info(self) -> Any:
        """Return free and total bytes, as ``(free, total)``; what gpupool has cached counts as free."""
        free, total = driver.driver.cuMemGetInfo()
        stats = memory_stats(self.context.device.id)
        return driver.MemoryInfo(free=free + stats.reserved_bytes - stats.live_bytes, total=total)

    def get_ipc_handle(self, memory: Any) -> Any:
        """Return a handle with which another process opens the memory; it must be of a pool made with ``segments``.

        Raises:
            NotImplementedError: It is other memory, which CUDA's legacy IPC cannot share.
        """
        attribute = bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        if not driver.driver.cuPointerGetAttribute(attribute, memory.device_pointer):
            raise NotImplementedError(
                "this memory is of pages that can move, which CUDA's IPC handles cannot share: allocate it in "
                "`with gpupool.use_mem_pool(gpupool.MemPool(segments=True)):`"
            )
        return super().get_ipc_handle(memory)

    def reset(self) -> None:
        """Free the memory of dead arrays that waits.

        Arrays that live keep their memory until they die, as long as the context lives.
        """
        self._give_up_the_dead()
        super().reset()

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface: 1."""
        return 1
